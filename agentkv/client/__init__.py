"""Branches of a server's model, with the SDK's own verbs: what is written for `kv.Branch` runs on them.

async with agentkv.client.connect("http://127.0.0.1:8080") as remote:
    trunk = await remote.branch("Once upon a time")
    kids = await trunk.fork(4)
    outs = await kv.gather(*(kid.generate(max_tokens=32) for kid in kids))
"""

from ._branch import RemoteBranch
from ._connection import Connection, connect
from ._stream import RemoteStream
from ._wire import ServerError

__all__ = ["Connection", "RemoteBranch", "RemoteStream", "ServerError", "connect"]
