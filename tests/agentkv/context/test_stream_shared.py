"""Streams of branches that other tasks use as well: what they forked, asked, went on from or closed meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import numpy as np
import pytest

import agentkv as kv

from ..conftest import OpenContext
from .test_stream_keep import PROMPT, check_as_if_no_more, held

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("keep", ["read", "made"])
async def test_a_fork_has_what_was_made_when_it_was_taken(open_context: OpenContext, keep: Any) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        twin = await trunk.fork()
        whole = await twin.generate(max_tokens=50)
        async with trunk.stream(max_tokens=50, buffer=8, keep=keep) as stream:
            await anext(stream)
            while len(kid := await trunk.fork()) < len(PROMPT) + 8:  # it is that far ahead, and pauses
                await kid.close()
        made = 1 if keep == "read" else 8
        assert stream.generation.tokens == whole.tokens[:made]
        assert trunk.tokens == PROMPT + whole.tokens[:made]
        assert kid.tokens == PROMPT + whole.tokens[:8]
        for branch in (trunk, kid):
            fresh = await ctx.branch(branch.tokens)
            np.testing.assert_array_equal(await branch.logits(), await fresh.logits())


GO_ON: list[Callable[[kv.Branch, kv.Branch], Awaitable[object]]] = [
    lambda branch, other: branch.extend([3, 4]),
    lambda branch, other: branch.rollback(len(PROMPT) + 5),
    lambda branch, other: branch.adopt(other),
    lambda branch, other: branch.generate(max_tokens=2),
]


@pytest.mark.parametrize("go_on", GO_ON, ids=["extend", "rollback", "adopt", "generate"])
async def test_what_another_task_went_on_from_stays(
    open_context: OpenContext, go_on: Callable[[kv.Branch, kv.Branch], Awaitable[object]]
) -> None:
    async with open_context() as ctx:
        trunk, other = await ctx.branch(PROMPT), await ctx.branch([5, 6, 7])
        whole = await (await trunk.fork()).generate(max_tokens=9)
        async with trunk.stream(max_tokens=9) as stream:
            await anext(stream)
            await stream._job.settled.wait()
            await go_on(trunk, other)
            tokens = trunk.tokens
        assert trunk.tokens == tokens
        assert stream.generation == whole
        await held(trunk)


async def test_a_question_does_not_keep_it(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        mark = trunk.mark()
        async with trunk.stream(max_tokens=9) as stream:
            await anext(stream)
            await stream._job.settled.wait()
            await trunk.logits()
            await trunk.select(["yes", "no"])
        assert len(trunk) == len(PROMPT) + 1
        await check_as_if_no_more(trunk, mark, stream.generation, {})


async def test_a_reader_in_another_task_gets_no_more(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        read: list[int] = []
        ended = anyio.Event()

        async def follow(stream: kv.TokenStream) -> None:
            async for token in stream:
                read.append(token.id)
            ended.set()

        async with anyio.create_task_group() as group:
            async with trunk.stream(max_tokens=1000, buffer=4) as stream:
                group.start_soon(follow, stream)
                while len(read) < 10:
                    await anyio.lowlevel.checkpoint()
            count = len(read)
            await ended.wait()
        assert len(read) == count
        assert trunk.tokens == PROMPT + read
        assert stream.generation.tokens == read


async def test_a_branch_that_was_closed(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        async with trunk.stream(max_tokens=1000, buffer=8) as stream:
            read = [(await anext(stream)).id]
            await trunk.close()
        assert stream.generation.tokens == read
        assert (ctx.stats.branches, ctx.stats.cells_used) == (0, 0)
