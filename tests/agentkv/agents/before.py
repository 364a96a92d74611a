"""A branch as it was before a turn, to compare it with afterwards."""

from __future__ import annotations

import asyncio
import gc

import anyio
import numpy as np
import trio
from numpy.typing import NDArray
from sniffio import current_async_library

import agentkv as kv
from agentkv._aio.threads import ToolThreads
from tests.waiting import PATIENCE


def live_tasks() -> int:
    if current_async_library() == "asyncio":
        return len(asyncio.all_tasks())
    return trio.lowlevel.current_statistics().tasks_living


class Before:
    """A branch as it was, to compare it with later."""

    def __init__(self, ctx: kv.Context, branch: kv.Branch, row: NDArray[np.float32]) -> None:
        self.ctx, self.branch, self.row = ctx, branch, row
        self.tokens, self.messages = branch.tokens, branch.messages
        self.mark = branch.mark()
        self.counts = self._counts()
        self.tasks = live_tasks()

    @classmethod
    async def of(cls, ctx: kv.Context, branch: kv.Branch) -> Before:
        mark, row = branch.mark(), await branch.logits()
        await branch.extend([5])
        await branch.rollback(mark)  # whose last token is fed again, into a cell of its own
        np.testing.assert_array_equal(await branch.logits(), row)
        return cls(ctx, branch, row)

    def _counts(self) -> tuple[int, int]:
        return self.ctx.stats.branches, self.ctx.stats.cells_used

    async def check(self) -> None:
        """The branch has its tokens, messages, bits and mark; no branch, cell, job, task or hold is left."""
        assert live_tasks() == self.tasks
        assert self.branch.tokens == self.tokens
        assert self.branch.messages == self.messages
        held = await self.ctx._core.loop.call(lambda engine: engine.tokens(self.branch.id).tolist())  # type: ignore[attr-defined]
        assert held == self.tokens
        np.testing.assert_array_equal(await self.branch.logits(), self.row)
        await self.branch.rollback(self.mark)
        gc.collect()
        with anyio.fail_after(PATIENCE):
            while self._counts() != self.counts or self.ctx._core.singleton(ToolThreads).busy:
                await self.ctx._core.loop.call(lambda _: None)
        assert self.ctx._core.loop._worker.jobs == {}
        assert self.branch._handle.state.lease is None
