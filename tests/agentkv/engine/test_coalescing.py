"""Branches that run at the same time share their forwards, whoever drives them."""

from __future__ import annotations

import anyio
import numpy as np
import pytest

import agentkv as kv

from ..conftest import OpenContext

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("forwards_wait")]

N = 8
STEPS = 40


async def eight(ctx: kv.Context) -> list[kv.Branch]:
    """Branches that are in eight different places."""
    trunk = await ctx.branch("The quick brown fox")
    kids = await trunk.fork(N)
    for i, kid in enumerate(kids):
        await kid.extend([100 + i])
    return kids


async def drive(kid: kv.Branch, ticks: int = 0) -> None:
    """A loop as users write it: look at the logits, take a token, go on."""
    for _ in range(STEPS):
        row = await kid.logits()
        for _ in range(ticks):
            await anyio.lowlevel.checkpoint()
        await kid.extend([int(np.argmax(row))])


def full_share(before: kv.Stats, after: kv.Stats, rows: int, least: int = 1) -> float:
    """Which part of the steps of `least` rows or more, between two snapshots, had `rows` or more."""
    steps = {n: k - before.rows_per_step.get(n, 0) for n, k in after.rows_per_step.items() if n >= least}
    return sum(count for n, count in steps.items() if n >= rows) / sum(steps.values())


async def test_generations_share_every_forward(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        kids = await eight(ctx)
        before = ctx.stats.forwards
        outs = await kv.gather(*(kid.generate(max_tokens=64, sampling=kv.Sampling(seed=1)) for kid in kids))
        assert ctx.stats.forwards - before <= 66
        assert max(len(out.tokens) for out in outs) > 32


async def test_loops_in_eight_tasks_share_their_forwards(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        kids = await eight(ctx)
        before = ctx.stats
        await kv.gather(*(drive(kid) for kid in kids))
        after = ctx.stats
        assert after.tokens - before.tokens == N * STEPS
        assert full_share(before, after, N) >= 0.95


async def test_loops_that_pass_over_the_event_loop_share_their_forwards(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        kids = await eight(ctx)
        before = ctx.stats
        await kv.gather(*(drive(kid, ticks=1) for kid in kids))
        assert full_share(before, ctx.stats, N) >= 0.95


async def test_loops_ride_with_a_generation_that_runs_in_the_engine(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        kids = await eight(ctx)
        other = await ctx.branch(list(range(20, 30)))
        before = ctx.stats
        async with other.stream(max_tokens=1500, buffer=1500):
            await kv.gather(*(drive(kid) for kid in kids))
            after = ctx.stats
        assert after.tokens - before.tokens >= N * STEPS + STEPS - 2
        # Forwards of one row are the generation's own, while a busy machine kept the event loop from answering.
        assert full_share(before, after, N, least=2) >= 0.95


async def test_loops_that_begin_apart_come_together(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        kids = await eight(ctx)
        begun = [anyio.Event() for _ in kids]

        async def late(i: int) -> None:
            if i:
                await begun[i - 1].wait()
            row = await kids[i].logits()
            if i % 2:  # half of them in the other phase of the loop
                await kids[i].extend([int(np.argmax(row))])
            begun[i].set()
            await drive(kids[i])

        before = ctx.stats.forwards
        await kv.gather(*(late(i) for i in range(N)))
        assert ctx.stats.forwards - before <= STEPS + 2 * N


async def test_prefills_share_their_forwards(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        before = ctx.stats.forwards
        await kv.gather(*(ctx.branch([200 + i] * 8) for i in range(N)))
        assert ctx.stats.forwards - before == 1
