"""The tests of the SDK over a server: what `open_context` opens then."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import agentkv as kv
from agentkv._aio.loop_thread import LoopThread
from agentkv.serve import Settings
from tests.faults import SERVERS
from tests.models import tiny_spec, write_hf_folder
from tests.vllm.server import WEIGHTS, VLLMServer

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
            SERVERS[ctx] = (thread, thread.value.ctx)
            yield ctx
    finally:
        thread.close()


@asynccontextmanager
async def over_vllm(folder: Path, **options: Any) -> AsyncIterator[kv.Context]:
    """On one server of nano, or of a tiny model of random weights, for the whole run: capacities are its own."""
    given = {name: options[name] for name in options if name not in OF_SERVER}
    async with kv.Context.connect(vllm_server(folder == kv.models.nano()).url, **given) as ctx:
        yield ctx


@cache
def vllm_server(nano: bool) -> VLLMServer:
    python, log = os.environ["AGENTKV_VLLM_PYTHON"], Path(tempfile.mkdtemp())
    server = VLLMServer(python, log / "log", WEIGHTS if nano else tiny(log / "tiny"))
    atexit.register(server.kill)
    return server


def tiny(folder: Path) -> Path:
    """As the tiny model of the other tests, with heads of a size that vLLM has kernels for."""
    return write_hf_folder(tiny_spec("llama", head_dim=64), folder)


def over_server(backend: str, folder: Path, **options: Any) -> AbstractAsyncContextManager[kv.Context]:
    return {"agentkv": over_agentkv, "vllm": over_vllm}[backend](folder, **options)
