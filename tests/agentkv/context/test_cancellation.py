"""Cancelled verbs are settled where they were: tokens and cache agree, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import random
import time

import anyio
import numpy as np
import pytest
import trio
from sniffio import current_async_library

import agentkv as kv
from tests.waiting import NEVER, until_sync

from ..conftest import OpenContext, after_forwards, loop_threads

pytestmark = pytest.mark.anyio

HOT = kv.Sampling(temperature=1, seed=8, repetition_penalty=0.1)
ROUNDS = 125
TASKS = 8


async def test_a_cancelled_prefill_leaves_the_branch_as_it_was(open_context: OpenContext) -> None:
    async with open_context(max_batch_tokens=1) as ctx:
        branch = await ctx.branch("The quick")
        before, row = branch.tokens, await branch.logits()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(branch.extend, [50] * 1500)
                await after_forwards(ctx, 2)
                scope.cancel()
        assert scope.cancelled_caught
        assert branch.tokens == before
        assert ctx.stats.cells_used == len(before)
        np.testing.assert_array_equal(await branch.logits(), row)


async def test_an_extend_that_was_done_when_its_task_was_cancelled_is_taken_back(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The quick")
        before, row = branch.tokens, await branch.logits()
        for wait in (0.0, 0.0005, 0.001, 0.002, 0.004):
            done = anyio.Event()
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:

                    async def extend(done: anyio.Event = done) -> None:
                        await branch.extend([50, 51])
                        done.set()

                    group.start_soon(extend)
                    await anyio.lowlevel.checkpoint()
                    await anyio.lowlevel.checkpoint()
                    time.sleep(wait)  # noqa: ASYNC251 - the engine goes on while the event loop cannot
                    scope.cancel()
            assert branch.tokens == ([*before, 50, 51] if done.is_set() else before)
            await branch.rollback(len(before))
            np.testing.assert_array_equal(await branch.logits(), row)


async def test_a_cancelled_first_prefill_leaves_no_branch(open_context: OpenContext) -> None:
    async with open_context(max_batch_tokens=1) as ctx:
        async with anyio.create_task_group() as group:
            group.start_soon(ctx.branch, [50] * 2000)
            await after_forwards(ctx, 3)
            group.cancel_scope.cancel()
        assert ctx.branches == []
        await ctx.branch("The")
        assert (ctx.stats.branches, ctx.stats.cells_used) == (1, 1)


async def test_a_cancelled_generation_keeps_what_it_made(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The quick")
        before = branch.tokens
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: branch.generate(max_tokens=1900, sampling=HOT))
            await after_forwards(ctx, 10)
            group.cancel_scope.cancel()
        assert len(before) < len(branch) < 1900
        fresh = await ctx.branch(branch.tokens)
        np.testing.assert_array_equal(await branch.logits(), await fresh.logits())


async def test_a_cancelled_reader_ends_its_stream(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The quick")
        with anyio.CancelScope() as scope:
            async with branch.stream(max_tokens=1900, buffer=3) as stream:
                async for token in stream:
                    if token.index == 5:
                        scope.cancel()
        assert scope.cancelled_caught
        assert stream.generation.finish_reason == "cancelled"
        assert len(stream.generation.tokens) == 6
        assert branch.tokens[-len(stream.generation.tokens) :] == stream.generation.tokens
        await branch.logits()


@pytest.mark.unsanitized
async def test_a_cancelled_reader_gets_no_token_that_came_meanwhile(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The quick")
        engine = ctx._core.loop._worker.engine
        with anyio.CancelScope() as scope:
            async with branch.stream(max_tokens=1900, buffer=1) as stream:
                async for token in stream:
                    if token.index == 5:
                        until_sync(lambda: engine.stats().generated == 7)  # the next one waits in the event loop
                        scope.cancel()
        assert scope.cancelled_caught
        assert len(stream.generation.tokens) == 6


async def test_cancelled_before_it_began(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("The")
        for verb in (branch.fork, branch.generate, branch.logits, lambda: branch.extend("x"), lambda: ctx.branch("y")):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await verb()
            assert scope.cancelled_caught
        assert branch.text == "The"
        assert ctx.branches == [branch]
        await branch.logits()
        assert (ctx.stats.branches, ctx.stats.cells_used) == (1, 1)


async def test_closing_under_cancellation_frees_the_branch(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The")
        with anyio.CancelScope() as scope:
            async with await trunk.fork(), await trunk.fork():
                assert len(ctx.branches) == 3
                scope.cancel()
                await anyio.sleep(NEVER)
        assert ctx.branches == [trunk]
        assert ctx.stats.branches == 1


async def test_another_task_goes_on_with_a_branch_as_its_generation_is_cancelled(open_context: OpenContext) -> None:
    """What it does comes after what was cancelled, in the tokens as in the cache."""
    async with open_context() as ctx:
        trunk, other = await ctx.branch("The quick brown fox"), await ctx.branch("def add")
        for verb in [lambda kid: kid.rollback(3), lambda kid: kid.adopt(other), lambda kid: kid.rollback(3)] * 10:
            async with await trunk.fork() as kid, anyio.create_task_group() as group:

                async def generate(scope: anyio.CancelScope, kid: kv.Branch = kid) -> None:
                    with scope:
                        await kid.generate(max_tokens=1900, sampling=HOT)

                scope = anyio.CancelScope()
                group.start_soon(generate, scope)
                await after_forwards(ctx, 2)
                scope.cancel()
                while True:
                    await anyio.lowlevel.checkpoint()
                    try:
                        await verb(kid)
                    except kv.BranchBusy:  # the cancelled task did not run yet
                        continue
                    break
                held = await ctx._core.loop.call(lambda engine, kid=kid: engine.tokens(kid.id).tolist())
                assert kid.tokens == held
                fresh = await ctx.branch(kid.tokens)
                np.testing.assert_array_equal(await kid.logits(), await fresh.logits())


def live_tasks() -> int:
    if current_async_library() == "asyncio":
        return len(asyncio.all_tasks())
    return trio.lowlevel.current_statistics().tasks_living


async def test_a_thousand_random_cancellations_leak_nothing(open_context: OpenContext) -> None:
    rng = random.Random(5)
    tasks = live_tasks()
    async with open_context(max_batch_tokens=32) as ctx:
        trunk = await ctx.branch("The quick brown fox jumps over")
        tokens, row = trunk.tokens, await trunk.logits()

        async def stream(branch: kv.Branch) -> None:
            async with branch.stream(max_tokens=400, buffer=rng.randint(1, 8)) as tokens:
                async for _ in tokens:
                    await anyio.sleep(rng.random() * 0.002)

        async def fork(branch: kv.Branch) -> None:
            kids = await branch.fork(3)
            await kv.gather(*(kid.generate(max_tokens=400) for kid in kids))

        async def prefill(branch: kv.Branch) -> None:
            async with await ctx.branch([*tokens, *([rng.randrange(300)] * 200)]) as other:
                await branch.adopt(other)
                await branch.select(["yes", "no", "maybe so"])
                await branch.logits()

        async def extend(branch: kv.Branch) -> None:
            mark = branch.mark()
            await branch.extend([rng.randrange(300)] * 200)
            await branch.rollback(mark)
            await branch.generate(max_tokens=400)

        async def one(delay: float) -> None:
            with anyio.move_on_after(delay):
                async with await trunk.fork() as branch:
                    try:
                        await rng.choice([stream, fork, prefill, extend])(branch)
                    finally:
                        with anyio.CancelScope(shield=True):  # whatever was cut short, both sides agree on the log
                            held = await ctx._core.loop.call(lambda engine: engine.tokens(branch.id).tolist())
                        assert held == branch.tokens

        for _ in range(ROUNDS):
            async with anyio.create_task_group() as group:
                for _ in range(TASKS):
                    group.start_soon(one, rng.random() ** 3 * 0.03)
        gc.collect()
        await ctx.keep(trunk)
        await ctx._core.loop.call(lambda _: None)
        stats = ctx.stats
        assert (stats.branches, stats.cells_used) == (1, len(tokens))
        assert ctx._core.loop._worker.jobs == {}
        assert trunk.tokens == tokens
        np.testing.assert_array_equal(await trunk.logits(), row)
        await trunk.extend([1] * (2048 - len(tokens)))
    assert loop_threads() == []
    assert live_tasks() == tasks
