"""Fixtures of the agents' tests: what the SDK's use, and nano with tools that it knows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

import agentkv as kv
from examples.nano.tools import SYSTEM, TOOLS
from tests.agentkv.conftest import (  # noqa: F401 - fixtures
    OVER,
    OpenContext,
    anyio_backend,
    event_loop_goes_first,
    folder,
    open_context,
)
from tests.agentkv.remote.over_server import over_server

from .table import Table

OpenDesk = Callable[..., AbstractAsyncContextManager[kv.Context]]

TWO_CALLS = "What is the weather in Tolvik and in Brasno?"
ONE_CALL = "How many Lumora are in stock?"
NO_CALL = "Who are you?"


def as_tool(name: str, run: Callable[..., Any] | None = None, **options: Any) -> kv.Tool[Any, ..., Any]:
    """One of nano's tools, as nano knows it; `run` does something else instead."""
    tool = TOOLS[name]
    definition = tool.definition()["function"]
    return kv.Tool(tool.name, tool.description, definition["parameters"], run or tool.run, **options)


def desk_agent(*names: str, **options: Any) -> kv.Agent[Any, str]:
    """An agent with some of nano's tools; those given as `tools` come first."""
    tools = [*options.pop("tools", []), *(as_tool(name) for name in names)]
    return kv.Agent(SYSTEM, tools=tools, **options)


@pytest.fixture
def open_desk() -> OpenDesk:
    """`kv.Context.open` of nano, small."""

    @asynccontextmanager
    async def open_desk(capacity: int = 2048, **options: Any) -> AsyncIterator[kv.Context]:
        if OVER:
            opened = over_server(OVER, kv.models.nano(), capacity=capacity, **options)
        else:
            opened = kv.Context.open(kv.models.nano(), capacity=capacity, threads=1, **options)
        async with opened as ctx:
            yield ctx

    return open_desk


SlowReplies = Callable[..., AbstractAsyncContextManager[kv.Context]]


@pytest.fixture
def slow_replies(monkeypatch: pytest.MonkeyPatch) -> SlowReplies:
    """`kv.testing.replies`, one token a step, and the event loop comes round before each."""
    monkeypatch.setattr("agentkv.testing._script.ReplyState.forced", lambda state, most: [])

    @asynccontextmanager
    async def slow_replies(script: Any, **options: Any) -> AsyncIterator[kv.Context]:
        async with event_loop_goes_first(), kv.testing.replies(script, **options) as ctx:
            yield ctx

    return slow_replies


@pytest.fixture
def table(open_context: OpenContext) -> Callable[..., Any]:  # noqa: F811 - a fixture
    @asynccontextmanager
    async def table(*tools: kv.Tool[Any, ..., Any]) -> AsyncIterator[Table]:
        async with open_context() as ctx:
            yield Table(ctx, await ctx.branch("The"), list(tools))

    return table
