"""Fixtures of the server's tests: nano behind a real listener. uvicorn runs on asyncio alone, so all of them do."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import httpx
import openai
import pytest
import uvicorn

import agentkv as kv
from agentkv.serve import Settings, application
from agentkv.serve.running import _Listener
from agentkv.serve.server import Server


@dataclass(frozen=True)
class Served:
    ctx: kv.Context
    server: Server
    url: str
    openai: openai.AsyncOpenAI
    http: httpx.AsyncClient

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns once it holds, as the step loop goes on."""
        with anyio.fail_after(20):
            while not holds():
                await self.ctx._loop.call(lambda _: None)


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def serve() -> Serve:
    """`async with serve(capacity=8192, **settings) as served`."""

    @asynccontextmanager
    async def served(capacity: int = 8192, **settings: Any) -> AsyncIterator[Served]:
        async with kv.Context.open(kv.models.nano(), capacity=capacity, threads=1) as ctx:
            app = application(ctx, Settings(names=("nano",), **settings))
            bound = socket.create_server(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{bound.getsockname()[1]}"
            listener = _Listener(uvicorn.Config(app, log_level="warning"))
            async with anyio.create_task_group() as group:
                group.start_soon(listener.serve, [bound])
                key = settings.get("api_key") or "none"
                headers = {"authorization": f"Bearer {key}"}
                async with (
                    openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client,
                    httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http,
                ):
                    try:
                        yield Served(ctx, app.state.server, url, client, http)
                    finally:
                        listener.should_exit = True

    return served


@pytest.fixture
async def served(serve: Serve) -> AsyncIterator[Served]:
    async with serve() as served:
        yield served
