"""The Model Context Protocol (https://modelcontextprotocol.io): servers' tools for agents, and branches as a server.

async with agentkv.adapters.mcp.connect("npx -y @modelcontextprotocol/server-filesystem .") as files:
    agent = kv.Agent("...", toolsets=[files])
"""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from .connection import Connection as Connection
    from .connection import connect as connect
    from .errors import ServerLost as ServerLost
    from .errors import ServerToolError as ServerToolError

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, submod_attrs={"connection": ["Connection", "connect"], "errors": ["ServerLost", "ServerToolError"]}
)
