"""Nano, its tools and its questions, for frameworks that know nothing of it. They run on asyncio alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

import agentkv as kv
from examples.nano.tools import SYSTEM, TOOLS
from tests.agentkv.conftest import event_loop_goes_first, folder, with_template  # noqa: F401 - fixtures
from tests.waiting import PATIENCE, until

INSTRUCTIONS = SYSTEM
TWO_CALLS = "What is the weather in Tolvik and in Brasno?"
TWO_RESULTS = [TOOLS["weather"].run(city=city) for city in ("Tolvik", "Brasno")]
NO_CALL = "Who are you?"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def ctx() -> AsyncIterator[kv.Context]:
    async with kv.Context.open(kv.models.nano(), capacity=8192, threads=1) as ctx:
        yield ctx


@asynccontextmanager
async def freed(ctx: kv.Context) -> AsyncIterator[None]:
    """What runs in the block is cancelled when it is left; nothing of it stays.

    One step was under way and one may have been sent; the rest is what runs until the event loop, which goes first, has
    carried the cancellation. Uncancelled, the runs of these tests take a step for every free cell."""
    before = len(ctx.branches)
    async with event_loop_goes_first():
        yield
        steps = ctx.stats.steps
        await until(lambda: len(ctx.branches) <= before)
        await ctx._core.loop.call(lambda _: None)
        assert ctx.stats.steps <= steps + 20
    assert ctx._core.loop._worker.jobs == {}


async def generating(ctx: kv.Context) -> None:
    """Returns once something is being generated."""
    with anyio.fail_after(PATIENCE):
        while not any(step.decode_rows for step in ctx.steps):
            await anyio.lowlevel.checkpoint()


class Meeting:
    """Two calls of a tool that end only once both have begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._both = anyio.Event()

    async def weather(self, city: str) -> dict[str, object]:
        """The weather in a city."""
        self.begun.append(city)
        if len(self.begun) == 2:
            self._both.set()
        with anyio.fail_after(PATIENCE):
            await self._both.wait()
        return TOOLS["weather"].run(city=city)


@pytest.fixture
def meeting() -> Meeting:
    return Meeting()
