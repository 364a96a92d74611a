"""What closed branches leave to prompts that begin alike: found again, to the bit, and in nobody's way."""

from __future__ import annotations

import random
from pathlib import Path

import anyio
import numpy as np
import pytest

import agentkv as kv
from tests.waiting import PATIENCE

from ..conftest import OpenContext, after_forwards
from .test_memory import NANO, data_bytes, in_child

pytestmark = pytest.mark.anyio

PROMPT = [3 + i * 7 % 300 for i in range(120)]


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "int8", "int8/int4", "int4"])
async def test_what_a_closed_branch_left_is_the_same_to_the_bit(folder: object, kv_dtype: str) -> None:
    rows, said = [], []
    for retain in (None, 0):
        async with kv.Context.open(folder, 1024, kv_dtype=kv_dtype, threads=1, retain=retain) as ctx:  # type: ignore[arg-type]
            branch = await ctx.branch(PROMPT)
            first = await branch.generate(max_tokens=6)
            await branch.close()
            assert ctx.stats.cells_used == 0
            assert ctx.stats.cells_retained == (len(PROMPT) + 5 if retain is None else 0)
            fed = ctx.stats.prefilled
            again = await ctx.branch([*PROMPT, *first.tokens, 9, 8])
            assert ctx.stats.prefilled - fed == (3 if retain is None else len(again))
            assert ctx.stats.recalled == ctx.stats.reused == (len(PROMPT) + 5 if retain is None else 0)
            rows.append(await again.logits())
            said.append((await again.generate(max_tokens=5)).tokens)
    assert (rows[0] == rows[1]).all()
    assert said[0] == said[1]


async def test_a_bound_holds_and_the_oldest_leaves_first(open_context: OpenContext) -> None:
    async with open_context(retain=100) as ctx:
        for first in (0, 100, 200):
            async with await ctx.branch([first + i for i in range(40)]):
                pass
        assert ctx.stats.cells_retained == 100
        before = ctx.stats.recalled
        for first, found in ((200, 39), (100, 39), (0, 20)):
            async with await ctx.branch([first + i for i in range(40)]):
                assert ctx.stats.recalled - before == found
                before = ctx.stats.recalled
    for wrong in (-1, 1.5, "all"):
        with pytest.raises(kv.InvalidInput, match="retain"):
            async with open_context(retain=wrong):
                pass


async def test_what_is_retained_makes_room_for_whoever_lives(open_context: OpenContext) -> None:
    async with open_context(capacity=160) as ctx:
        await (await ctx.branch(PROMPT)).close()
        branch = await ctx.branch([5] * 150)
        assert ctx.stats.cells_retained == 10
        assert (await branch.generate(max_tokens=50)).finish_reason == "context_full"
        assert (ctx.stats.cells_used, ctx.stats.cells_retained) == (160, 0)
        assert ctx.stats.cells_free == 0
        await branch.rollback(30)
        assert len((await branch.generate(max_tokens=50)).tokens) == 50


async def test_adopted_and_kept_away_branches_leave_what_they_had(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT[:50])
        kid = await trunk.fork()
        await kid.rollback(20)
        await kid.extend([7] * 30)
        await trunk.adopt(kid)
        assert ctx.stats.cells_retained == 30
        await ctx.keep()
        assert (ctx.stats.cells_used, ctx.stats.cells_retained) == (0, 80)
        await ctx.branch(PROMPT[:50])
        assert ctx.stats.recalled == 49


async def test_prompts_of_one_moment_are_computed_once(open_context: OpenContext) -> None:
    async with open_context(max_batch_tokens=32) as ctx:
        prompts = [[*PROMPT, 5 + i, 6] for i in range(8)]
        branches = await kv.gather(*map(ctx.branch, prompts))
        assert [branch.tokens for branch in branches] == prompts
        assert ctx.stats.prefilled == len(PROMPT) + 8 * 2
        assert ctx.stats.reused == 7 * len(PROMPT)
        rows = [await branch.logits() for branch in branches]
    async with open_context() as ctx:
        for prompt, row in zip(prompts, rows, strict=True):
            assert (await (await ctx.branch(prompt)).logits() == row).all()


async def test_a_prompt_that_others_wait_for_is_cancelled(open_context: OpenContext) -> None:
    async with open_context(max_batch_tokens=16) as ctx:
        for steps in range(12):
            opened: list[kv.Branch] = []

            async def first() -> None:
                await ctx.branch(PROMPT * 2)

            async def second(opened: list[kv.Branch] = opened) -> None:
                opened.append(await ctx.branch([*PROMPT, *PROMPT, 9]))

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as group:
                    with anyio.CancelScope() as scope:
                        async with anyio.create_task_group() as inner:
                            inner.start_soon(first)
                            group.start_soon(second)
                            for _ in range(steps):
                                await ctx._core.loop.call(lambda _: None)
                            scope.cancel()
            assert opened[0].tokens == [*PROMPT, *PROMPT, 9]
            await ctx.keep()


@pytest.mark.parametrize("ends", ["cancelled", "closed"])
async def test_those_who_waited_wait_for_each_other_then(open_context: OpenContext, ends: str) -> None:
    """Where the prompt that all wait for is gone, what it computed is taken, and the rest is computed once."""
    async with open_context(capacity=400, max_batch_tokens=16) as ctx:
        whole = PROMPT * 2
        opened: list[kv.Branch] = []
        scope = anyio.CancelScope()

        async def first() -> None:
            with scope:
                branch = await ctx.branch([*whole, 5])
                await branch.close()

        async def other(token: int) -> None:
            opened.append(await ctx.branch([*whole, token, 6]))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(first)
                for token in range(6, 11):
                    group.start_soon(other, token)
                if ends == "cancelled":
                    await after_forwards(ctx, 5)
                    scope.cancel()
        assert sorted(branch.tokens[-2] for branch in opened) == [6, 7, 8, 9, 10]
        assert all(branch.tokens[:-2] == whole for branch in opened)
        assert ctx.stats.prefilled <= len(whole) + 5 * 2 + 1 + 16


@pytest.mark.unsanitized
def test_memory_that_is_short_is_taken_from_what_is_retained() -> None:
    """In a process of its own, whose memory is limited."""

    async def prompts() -> None:
        import resource

        async with kv.Context.open(NANO, capacity=100_000, kv_dtype="fp32", max_batch_tokens=16, threads=1) as ctx:
            await (await ctx.branch(PROMPT * 6)).close()  # forwards of 16 rows find what else they need from now on
            held = await ctx.branch(PROMPT)
            await ctx.compact(retain=0)
            limits = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + (8 << 20), limits[1]))
            for first in range(1, 21):
                async with await ctx.branch([first, *PROMPT * 5]):
                    pass
            assert ctx.stats.cells_used == len(held)
            resource.setrlimit(resource.RLIMIT_DATA, limits)

    in_child(lambda: anyio.run(prompts))


async def test_what_a_file_says_serves_nobody_else(open_context: OpenContext, tmp_path: Path) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch(PROMPT)
        await branch.save(tmp_path / "saved")
        await ctx.keep()
        await ctx.compact(retain=0)
        loaded = await ctx.load(tmp_path / "saved")
        kid = await loaded.fork()
        assert ctx.stats.cells_shared == len(PROMPT)
        before = ctx.stats.reused
        await ctx.branch([*PROMPT, 5])
        assert ctx.stats.reused == before
        await ctx.keep()
        assert ctx.stats.cells_retained == len(PROMPT) + 1  # of the prompt, not of the file
        assert kid.closed


async def test_compacting_beside_a_return_takes_what_is_reserved_along(open_context: OpenContext) -> None:
    async with open_context(capacity=1500, retain=0) as ctx:
        low = [await ctx.branch([i, *PROMPT]) for i in range(5)]
        away = await ctx.branch(PROMPT * 3)
        row = await away.logits()
        await away.offload()
        for branch in low[1:]:
            await branch.close()
        async with anyio.create_task_group() as group:
            group.start_soon(away.logits)
            for _ in range(30):
                assert await ctx.compact() >= 0
        assert (await away.logits() == row).all()


@pytest.mark.parametrize("strategy", [kv.spec.PromptLookup(), kv.spec.Suffix(), kv.spec.Eagle()])
async def test_strategies_go_on_from_what_was_retained(strategy: kv.spec.Strategy) -> None:
    asked = [{"role": "user", "content": "Who are you?"}]
    said = []
    for speculative in (strategy, None):
        async with kv.Context.open(kv.models.nano(), 1024, threads=1, speculative=speculative) as ctx:
            for _ in range(3):
                async with await ctx.branch(asked) as branch:
                    said.append((await branch.generate(max_tokens=40)).tokens)
            assert ctx.stats.recalled > 0
    assert all(tokens == said[0] for tokens in said)


async def story(ctx: kv.Context, seed: int, verbs: int) -> list[object]:
    """What random verbs come to, one after another, on a cache that is often full."""
    rng, seen = random.Random(seed), []
    live: list[kv.Branch] = []
    for _ in range(verbs):
        branch = rng.choice(live) if live else None
        kind = rng.random()
        try:
            if branch is None or kind < 0.25:
                length = rng.randint(1, len(PROMPT))
                live.append(
                    await ctx.branch([*PROMPT[:length], *(rng.randrange(300) for _ in range(rng.randint(0, 9)))])
                )
            elif kind < 0.45:
                live.remove(branch)
                await branch.close()
            elif kind < 0.6:
                live.append(await branch.fork())
            elif kind < 0.7:
                await branch.rollback(rng.randint(1, len(branch)))
            elif kind < 0.8:
                await branch.extend([rng.randrange(300) for _ in range(rng.randint(1, 30))])
            elif kind < 0.85 and len(live) > 1:
                await branch.adopt(rng.choice([other for other in live if other is not branch]))
            elif kind < 0.9:
                await branch.offload()
            else:
                made = await branch.generate(max_tokens=rng.randint(1, 12), sampling=kv.Sampling(temperature=1, seed=2))
                seen.append((made.tokens, made.finish_reason))
        except kv.ContextFull as error:
            seen.append(type(error).__name__)
        seen.append([len(branch) for branch in live])
        assert ctx.stats.cells_used + ctx.stats.cells_retained <= ctx.stats.capacity
    if live:
        row = await live[-1].logits() if ctx.stats.cells_free else None
        seen.append(None if row is None else np.asarray(row).tobytes())
    return seen


@pytest.mark.parametrize("seed", range(3))
async def test_nobody_notices_what_is_retained(open_context: OpenContext, seed: int) -> None:
    """Tokens, lengths, finish reasons, refusals and bits are those of a Context that retains nothing."""
    await same_stories(open_context, seed, 150)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 20))
async def test_nobody_notices_what_is_retained_for_long(open_context: OpenContext, seed: int) -> None:
    await same_stories(open_context, seed, 2500)


async def same_stories(open_context: OpenContext, seed: int, verbs: int) -> None:
    stories = []
    for retain in (None, 0, 40):
        async with open_context(capacity=400, retain=retain) as ctx:
            stories.append(await story(ctx, seed, verbs))
            if retain is None:
                assert ctx.stats.recalled > 0
            elif retain == 0:
                assert ctx.stats.recalled == ctx.stats.cells_retained == 0
    assert stories[0] == stories[1] == stories[2]
