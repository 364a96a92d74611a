"""A Context that is left at a random moment: whatever was under way ends in its result or in ContextClosed."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import anyio
import pytest

import agentkv as kv
from tests.waiting import PATIENCE

from ..conftest import OpenContext, loop_threads

Verb = Callable[[kv.Context, kv.Branch], Awaitable[object]]
ROUNDS = 40


async def read(ctx: kv.Context, branch: kv.Branch) -> None:
    async with branch.stream(max_tokens=400, buffer=3) as tokens:
        async for _ in tokens:
            pass


async def read_slowly(ctx: kv.Context, branch: kv.Branch) -> None:
    async with branch.stream(max_tokens=400, buffer=2) as tokens:
        async for _ in tokens:
            await anyio.sleep(random.random() * 0.002)


async def fan_out(ctx: kv.Context, branch: kv.Branch) -> None:
    await kv.gather(*(kid.generate(max_tokens=100) for kid in await branch.fork(3)))


async def in_a_block(ctx: kv.Context, branch: kv.Branch) -> None:
    async with await branch.fork() as kid:
        await kid.extend("more")
        await kid.generate(max_tokens=50)


async def extend_and_roll_back(ctx: kv.Context, branch: kv.Branch) -> None:
    mark = branch.mark()
    await branch.extend([9] * 300)
    await branch.rollback(mark)


async def fork_and_close(ctx: kv.Context, branch: kv.Branch) -> None:
    await (await branch.fork()).close()


async def adopt(ctx: kv.Context, branch: kv.Branch) -> None:
    await branch.adopt(await branch.fork())
    await ctx.keep(*ctx.branches)


VERBS: list[Verb] = [
    read,
    read_slowly,
    fan_out,
    in_a_block,
    extend_and_roll_back,
    adopt,
    lambda ctx, branch: branch.generate(max_tokens=400),
    lambda ctx, branch: branch.generate(max_tokens=400, speculative=kv.spec.PromptLookup()),
    lambda ctx, branch: branch.extend([5] * 500),
    lambda ctx, branch: branch.select(["yes", "no", "maybe so"]),
    lambda ctx, branch: branch.logits(),
    fork_and_close,
    lambda ctx, branch: ctx.branch([6] * 300),
    lambda ctx, branch: ctx.branch(),
]


async def leave_at_random_moments(open_context: OpenContext, rounds: int, rng: random.Random) -> dict[str, int]:
    """Each round opens a Context, starts every verb on a branch of its own, cancels some, and leaves."""
    counts: dict[str, int] = {}

    async def one(ctx: kv.Context, verb: Verb, branch: kv.Branch, scope: anyio.CancelScope) -> None:
        outcome = "cancelled"
        with scope:
            try:
                while True:
                    await verb(ctx, branch)
                    counts["done"] = counts.get("done", 0) + 1
                    await anyio.lowlevel.checkpoint()
            except kv.AgentKVError as error:
                outcome = type(error).__name__
        counts[outcome] = counts.get(outcome, 0) + 1

    for _ in range(rounds):
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group, open_context(max_batch_tokens=16) as ctx:
                trunk = await ctx.branch("The quick brown")
                scopes = []
                for verb in VERBS:
                    scopes.append(anyio.CancelScope())
                    group.start_soon(one, ctx, verb, await trunk.fork(), scopes[-1])
                await anyio.sleep(rng.random() ** 3 * 0.03)
                for scope in rng.sample(scopes, rng.randint(0, 3)):
                    scope.cancel()
                if rng.random() < 0.5:
                    await anyio.lowlevel.checkpoint()
        assert loop_threads() == []
    return counts


@pytest.mark.anyio
async def test_leaving_at_random_moments(open_context: OpenContext) -> None:
    counts = await leave_at_random_moments(open_context, ROUNDS, random.Random(3))
    assert set(counts) <= {"done", "cancelled", "ContextClosed", "BranchClosed", "ContextFull"}, counts
    assert counts["ContextClosed"] > ROUNDS, counts


@pytest.mark.soak
@pytest.mark.anyio
async def test_leaving_a_thousand_times(open_context: OpenContext) -> None:
    counts = await leave_at_random_moments(open_context, 500, random.Random(4))
    print("left 500 times:", counts)
    assert set(counts) <= {"done", "cancelled", "ContextClosed", "BranchClosed", "ContextFull"}, counts


@pytest.mark.anyio
async def test_a_reader_hears_that_the_context_was_left(open_context: OpenContext) -> None:
    """A reader that waits for a token is told, whatever moment it is."""
    outcomes: list[str] = []
    for wait in (0.0, 0.0, 0.0005, 0.001, 0.002, 0.005):
        ended: list[str] = []

        async def reader(branch: kv.Branch, ended: list[str] = ended) -> None:
            try:
                await read(branch.context, branch)
            except kv.ContextClosed:
                ended.append("closed")
            else:
                ended.append("read to its end")

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group, open_context() as ctx:
                group.start_soon(reader, await ctx.branch("The quick"))
                await anyio.sleep(wait)
        assert len(ended) == 1
        outcomes += ended
    assert "closed" in outcomes


@pytest.mark.anyio
async def test_a_cancelled_extend_does_not_hold_up_the_leaving(open_context: OpenContext) -> None:
    for length in (2, 40, 400):
        ends: list[str] = []

        async def extend(branch: kv.Branch, tokens: int, ends: list[str] = ends) -> None:
            try:
                await branch.extend([9] * tokens)
            except kv.ContextClosed:
                ends.append("closed")
            except BaseException:
                ends.append("cancelled")
                raise
            else:
                ends.append("done")

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group, open_context(max_batch_tokens=16) as ctx:
                a, b = await ctx.branch("The"), await ctx.branch("fox")
                async with anyio.create_task_group() as inner:
                    inner.start_soon(extend, a, length)
                    group.start_soon(extend, b, length)
                    await anyio.lowlevel.checkpoint()
                    await anyio.lowlevel.checkpoint()
                    inner.cancel_scope.cancel()
        assert len(ends) == 2
