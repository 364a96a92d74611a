"""Nano behind `agentkv serve`, and a proxy in front that breaks things, on an event loop of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

import agentkv as kv
from agentkv._aio.loop_thread import LoopThread

from ..serve.conftest import Served
from .faulty_proxy import FaultyProxy, proxied
from .over_server import own_server

QUESTION = [{"role": "user", "content": "What is the weather in Tolvik and in Brasno?"}]


class Broken(NamedTuple):
    served: Served
    proxy: FaultyProxy


@asynccontextmanager
async def behind_a_proxy(**options: Any) -> AsyncIterator[Broken]:
    served_with = {"capacity": 8192, "threads": 1} | options
    async with own_server(kv.models.nano(), **served_with) as served, proxied(served.url) as proxy:
        yield Broken(served, proxy)


@pytest.fixture(scope="module")
def running() -> Iterator[Broken]:
    thread = LoopThread(behind_a_proxy)
    yield thread.value
    thread.close()


@pytest.fixture
def broken(running: Broken) -> Iterator[Broken]:
    yield running
    running.proxy.faults.clear()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def local() -> AsyncIterator[kv.Context]:
    async with kv.Context.open(kv.models.nano(), capacity=8192, threads=1) as ctx:
        yield ctx
