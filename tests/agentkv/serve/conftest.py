"""A server of nano on a free port, and clients that really talk to it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import httpx
import openai
import pytest
import uvicorn

import agentkv as kv
from agentkv.serve import Settings, application
from agentkv.serve.running import listener
from agentkv.serve.server import Server

SETTINGS = Settings(names=("nano", "alias"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # uvicorn's


@dataclass(frozen=True)
class Site:
    """A running server, and those who know it."""

    url: str
    context: kv.Context
    server: Server
    listener: uvicorn.Server
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI

    async def until_idle(self) -> None:
        """Waits until no request is at work any more."""
        with anyio.fail_after(60):
            await self.server.admission.idle()


@asynccontextmanager
async def serving(settings: Settings = SETTINGS, **options: Any) -> AsyncIterator[Site]:
    """Serves nano, with options of `Context.open`."""
    async with kv.Context.open(kv.models.nano(), **{"capacity": 16384, "threads": 1} | options) as context:
        app = application(context, settings)
        uvicorn_server = listener(app)
        bound = socket.create_server(("127.0.0.1", 0))
        url = "http://{}:{}".format(*bound.getsockname())
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: uvicorn_server.serve(sockets=[bound]))
            async with (
                httpx.AsyncClient(base_url=url, timeout=60) as http,
                openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=settings.api_key or "none", max_retries=0) as client,
            ):
                yield Site(url, context, app.state.server, uvicorn_server, http, client)
            uvicorn_server.should_exit = True
            group.cancel_scope.deadline = anyio.current_time() + 20
