"""A desk of tools over a real Context, without an agent and a model that calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

import agentkv as kv
from agentkv._aio.threads import ToolThreads
from agentkv.agents.tool_runner import ToolCallRunner, ToolEnvironment
from tests.waiting import until


class Table:
    """The desk, and what was told of its calls."""

    def __init__(self, ctx: kv.Context, branch: kv.Branch, tools: list[kv.Tool[Any, ..., Any]]) -> None:
        self.events: list[Any] = []
        self.answer: Callable[[kv.events.ApprovalAsked], None] = lambda asked: asked.deny("nobody is here")
        self.threads = ToolThreads(4)
        context = kv.RunContext("the deps", branch, None, None, 1)
        self.desk = ToolEnvironment(
            {tool.name: tool for tool in tools}, context, self.threads, ctx.tokenizer, self._emit, self._ask
        )

    async def _emit(self, event: Any) -> None:
        await anyio.lowlevel.checkpoint()
        self.events.append(event)

    async def _ask(self, asked: kv.events.ApprovalAsked) -> str | None:
        self.events.append(asked)
        self.answer(asked)
        return await asked.answer()

    def call(self, name: str, error: str | None = None, **arguments: Any) -> ToolCallRunner:
        return ToolCallRunner(self.desk, kv.CallRequest("c00000000", name, arguments, error))

    async def run(self, name: str, error: str | None = None, **arguments: Any) -> kv.CallRecord:
        call = self.call(name, error, **arguments)
        await call.run()
        assert call.record is not None
        assert self.events[-1] == kv.events.CallFinished(call.record)
        return call.record

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


async def until_idle(threads: ToolThreads) -> None:
    await until(lambda: not threads.busy)
