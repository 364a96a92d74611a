"""A server of nano on a free port, and clients that really talk to it. All tests run on asyncio, as uvicorn does."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import anthropic
import anyio
import httpx
import openai
import pytest
import uvicorn.server
from starlette.applications import Starlette

import agentkv as kv
from agentkv._engine.worker import EngineWorker
from agentkv.serve import Settings, application
from agentkv.serve.http.listener import listener
from agentkv.serve.server import Server
from tests.waiting import PATIENCE, TICK, until_sync

SETTINGS = Settings(names=("nano", "alias"))


class _LooksOften:
    """asyncio for uvicorn, which looks ten times a second whether it is to end: 0.2 seconds of each of 500 tests."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, TICK))


setattr(uvicorn.server, "asyncio", _LooksOften())  # noqa: B010 - a module of another's


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass(frozen=True)
class Served:
    """A running server, and those who talk to it."""

    ctx: kv.Context
    server: Server
    url: str
    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic
    http: httpx.AsyncClient
    app: Starlette

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns once it holds, as the step loop goes on."""
        with anyio.fail_after(PATIENCE):
            while not holds():
                await self.ctx._core.loop.call(lambda _: None)

    async def until_idle(self) -> None:
        """Waits until no request is at work any more, and what it closed is freed."""
        with anyio.fail_after(PATIENCE):
            await self.server.admission.idle()
            await (await self.ctx.branch("a")).close()  # behind all that was closed before


@contextmanager
def engine_held() -> Iterator[threading.Event]:
    """No step of any Context begins before the event is set."""
    go, step = threading.Event(), EngineWorker.step

    def behind(worker: EngineWorker) -> Any:
        until_sync(go.is_set)
        return step(worker)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineWorker, "step", behind)
        try:
            yield go
        finally:
            go.set()


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@asynccontextmanager
async def serving(settings: Settings = SETTINGS, **options: Any) -> AsyncIterator[Served]:
    """Serves nano, with options of `Context.open`."""
    opened = kv.Context.open(kv.models.nano(), **{"capacity": 16384, "threads": 1} | options)
    async with opened as ctx, serving_of(ctx, settings) as served:
        yield served


@asynccontextmanager
async def serving_of(ctx: kv.Context, settings: Settings = SETTINGS) -> AsyncIterator[Served]:
    """Serves a Context."""
    app = application(ctx, settings)
    http_server = listener(app)
    bound = socket.create_server(("127.0.0.1", 0))
    url = "http://{}:{}".format(*bound.getsockname())
    key = settings.api_key or "none"
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: http_server.serve(sockets=[bound]))
        async with (
            httpx.AsyncClient(base_url=url, timeout=PATIENCE) as http,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as of_openai,
            anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as of_anthropic,
        ):
            try:
                yield Served(ctx, app.state.server, url, of_openai, of_anthropic, http, app)
            finally:
                http_server.should_exit = True


@pytest.fixture
def serve() -> Serve:
    """`async with serve(capacity=8192, offload=None, **settings) as served`."""

    def served(capacity: int = 8192, offload: kv.Offload | None = None, **settings: Any) -> Any:
        options = {"capacity": capacity} | ({} if offload is None else {"offload": offload})
        return serving(replace(SETTINGS, **settings), **options)

    return served


@pytest.fixture
async def served(serve: Serve) -> AsyncIterator[Served]:
    async with serve() as served:
        yield served
