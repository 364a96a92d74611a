"""Strategies that read the model's features, whatever runs on them: the same output, features for whoever listens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agentkv as kv
from agentkv.spec import PromptLookup

from ..conftest import Head, OpenContext
from ..story import GREEDY, WARM, Story
from ..strategies import Listener

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
async def test_the_same_story_with_a_head(open_context: OpenContext, head: Head, n: int, sampling: kv.Sampling) -> None:
    async with open_context() as ctx:
        plain = await Story(ctx, n, sampling).run()
    for strategy in (head.kind(), head.kind(adaptive=False, width=3, top_k=3)):
        async with kv.Context.open(head.folder, 2048, "fp32", threads=1, speculative=strategy) as ctx:
            assert await Story(ctx, n, sampling).run() == plain
            assert ctx.stats.drafted > 0 or strategy.adaptive


async def test_strategies_take_turns_on_one_branch(open_context: OpenContext, head: Head) -> None:
    strategies: list[Any] = [
        head.kind(adaptive=False),
        None,
        PromptLookup(adaptive=False),
        head.kind(adaptive=False, width=2),
    ]

    async def run(ctx: kv.Context, strategies: list[Any]) -> list[kv.Generation]:
        branch = await ctx.branch([7] * 20)
        return [await branch.generate(max_tokens=9, speculative=strategies[i % len(strategies)]) for i in range(8)]

    async with open_context() as ctx:
        plain = await run(ctx, [None])
    async with kv.Context.open(head.folder, 2048, "fp32", threads=1) as ctx:
        assert await run(ctx, strategies) == plain
        assert ctx.stats.drafted > 0


async def test_saved_forked_and_constrained_branches_say_the_same(
    open_context: OpenContext, head: Head, tmp_path: Path
) -> None:
    async def run(ctx: kv.Context) -> list[kv.Generation]:
        trunk = await ctx.branch([7] * 20)
        said = [await trunk.generate(max_tokens=9)]
        await trunk.save(tmp_path / "trunk")
        kids = [*await trunk.fork(3), await ctx.load(tmp_path / "trunk")]
        said += await kv.gather(*(kid.generate(max_tokens=9) for kid in kids))
        await kids[0].rollback(len(kids[0]) - 5)
        await kids[3].offload()
        sampling = kv.Sampling(temperature=1.0, seed=3)
        said += await kv.gather(*(kid.generate(max_tokens=12, sampling=sampling) for kid in kids))
        said.append(await kids[1].generate(output=kv.Regex("[a-f]{3,20}!"), max_tokens=30))
        await trunk.adopt(kids[2])
        return [*said, await trunk.generate(max_tokens=9)]

    async with open_context() as ctx:
        plain = await run(ctx)
    strategy = head.kind(adaptive=False)
    async with kv.Context.open(head.folder, 2048, "fp32", threads=1, speculative=strategy) as ctx:
        assert await run(ctx) == plain
        assert ctx.stats.drafted > 0


async def test_a_listener_is_given_features(head: Head) -> None:
    listener = Listener()
    async with kv.Context.open(head.folder, 1024, "fp32", threads=1, speculative=listener) as ctx:
        branch = await ctx.branch([7] * 20)
        await branch.generate(max_tokens=5)
        assert listener.heard[branch.id] == dict(enumerate(branch.tokens[:-1]))
        width = 3 * 64 if head.kind is kv.spec.Eagle else 64
        assert {(rows.dtype, rows.shape[1]) for rows in listener.features} == {(np.dtype(np.float32), width)}
        assert sum(len(rows) for rows in listener.features) == len(branch) - 1
