"""Forwards that fail in the middle of the model, for tests under the fixture `failing_caches`."""

from __future__ import annotations

from typing import Any

from agentkv_runtime import _core

import agentkv as kv


async def fail_at(ctx: kv.Context, layer: int, after: int = 0) -> None:
    """The Context's forward after the next `after` ones fails before `layer` is written. Once."""

    def arm(_: object) -> None:
        opened: Any = ctx._loop._worker._open_engine
        _core.fail_at(opened.session.cache, layer, after_forwards=after)

    await ctx._loop.call(arm)
