"""Servers of real models on free ports, and the protocols' own clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import openai
import pytest_asyncio
import uvicorn

import agentkv as kv
from agentkv.serve import Settings, application
from agentkv.serve.server import Server

KEY = "the key"


@dataclass(frozen=True)
class Served:
    """A server, and who talks to it.

    Attributes:
        context: that it serves.
        server: behind the application.
        url: where it listens.
        http: a client of no protocol.
        openai: OpenAI's.
        anthropic: Anthropic's.
    """

    context: kv.Context
    server: Server
    url: str
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic

    async def idle(self) -> None:
        """Returns once no request is at work."""
        async with asyncio.timeout(20):
            while self.server.admission.running:
                await self.context._loop.call(lambda _: None)


@asynccontextmanager
async def serving(context: kv.Context, **settings: Any) -> AsyncIterator[Served]:
    """A server of a Context under the name `nano`, for the length of a block."""
    app = application(context, Settings(names=("nano",), **settings))
    listener = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    bound = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    serving = asyncio.create_task(listener.serve(sockets=[bound]))
    try:
        async with (
            httpx.AsyncClient(base_url=url, headers={"x-api-key": KEY}, timeout=60) as http,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as of_openai,
            anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0) as of_anthropic,
        ):
            yield Served(context, app.state.server, url, http, of_openai, of_anthropic)
    finally:
        listener.should_exit = True
        await serving


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    """The packaged nano."""
    async with kv.Context.open(kv.models.nano(), capacity=8192, threads=1) as context, serving(context) as served:
        yield served
