"""The tests of the SDK over a server: what `open_context` opens then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import agentkv as kv
from agentkv._loop_thread import LoopThread
from agentkv.serve import Settings

from ..serve.conftest import Served, serving_of

OF_SERVER = ("capacity", "threads", "kv_dtype", "max_batch_tokens", "retain", "window", "sinks", "quantize_after")


@asynccontextmanager
async def own_server(folder: Path, **options: Any) -> AsyncIterator[Served]:
    settings = Settings(names=("tiny",), most_running=256, most_waiting=4096)
    async with kv.Context.open(folder, **options) as ctx, serving_of(ctx, settings) as served:
        yield served


@asynccontextmanager
async def over_agentkv(folder: Path, **options: Any) -> AsyncIterator[kv.Context]:
    of_server = {"kv_dtype": "fp32", "threads": 1} | {name: options.pop(name) for name in OF_SERVER if name in options}
    thread = LoopThread(lambda: own_server(folder, **of_server))
    try:
        async with kv.Context.connect(thread.value.url, backend="agentkv", **options) as ctx:
            yield ctx
    finally:
        thread.close()


def over_server(backend: str, folder: Path, **options: Any) -> AbstractAsyncContextManager[kv.Context]:
    return {"agentkv": over_agentkv}[backend](folder, **options)
