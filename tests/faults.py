"""Forwards that fail in the middle of the model, for tests under the fixture `failing_caches`."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import anyio.to_thread
from agentkv_runtime import _core

import agentkv as kv
from agentkv._aio.loop_thread import LoopThread

SERVERS: WeakKeyDictionary[kv.Context, tuple[LoopThread[Any], kv.Context]] = WeakKeyDictionary()
"""Of Contexts over a server of this process: its thread and the Context that it serves."""


async def fail_at(ctx: kv.Context, layer: int, after: int = 0) -> None:
    """The Context's forward after the next `after` ones fails before `layer` is written, or its server's. Once."""
    if ctx in SERVERS:
        thread, served = SERVERS[ctx]
        await anyio.to_thread.run_sync(thread.wait, fail_at(served, layer, after))
        return

    def arm(_: object) -> None:
        opened: Any = ctx._core.loop._worker._open_engine
        _core.fail_at(opened.session.cache, layer, after_forwards=after)

    await ctx._core.loop.call(arm)
