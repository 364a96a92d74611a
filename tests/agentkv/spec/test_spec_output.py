"""Speculation changes how many forwards a generation takes and nothing else: what it says is the same to the bit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import agentkv as kv
from agentkv.spec import DraftModel, Eagle, Mixed, PromptLookup, Suffix
from examples.nano.data import conversation
from tests.rows import in_turn, one_in

from ..conftest import OpenContext
from ..story import GREEDY, WARM, Story
from ..strategies import LastTime, RandomTrees, Recorded

pytestmark = pytest.mark.anyio

# What the packaged model has: its draft head, where the installation holds one.
OF_NANO = [
    PromptLookup(adaptive=False),
    Suffix(adaptive=False),
    Mixed(Suffix(adaptive=False), PromptLookup(adaptive=False)),
    *([Eagle(adaptive=False)] if (kv.models.nano() / "draft.pte").is_file() else []),
]
Open = Callable[..., AbstractAsyncContextManager[kv.Context]]


@pytest.fixture(params=["tiny", "nano"])
def open_model(request: pytest.FixtureRequest) -> Open:
    if request.param == "tiny":
        opened: Open = request.getfixturevalue("open_context")
        return opened
    return lambda **options: kv.Context.open(kv.models.nano(), capacity=4096, kv_dtype="fp32", threads=1, **options)


@pytest.mark.parametrize(("n", "sampling"), in_turn([1, 2, 8, 16], [GREEDY, WARM]))
async def test_the_same_story_with_and_without(open_model: Open, n: int, sampling: kv.Sampling) -> None:
    async with open_model() as ctx:
        plain = await Story(ctx, n, sampling).run()
        assert ctx.stats.drafted == 0
        runs = [tokens for tokens in plain if isinstance(tokens, list)]
        vocab, path = ctx.model_info.vocab_size, ctx.model_info.path
    strategies: list[Any] = [
        PromptLookup(),
        PromptLookup(adaptive=False, min_ngram=1, width=4, max_nodes=32),
        Suffix(),
        Suffix(adaptive=False, max_nodes=32),
        LastTime(),
        Mixed(Suffix(), LastTime(), RandomTrees(runs, vocab, seed=n + 1)),
        RandomTrees(runs, vocab, seed=n),
        DraftModel(path, adaptive=False, width=2, top_k=3),
        *(OF_NANO[3:] if path == kv.models.nano() else []),
    ]
    for strategy in strategies:
        async with open_model(speculative=strategy) as ctx:
            assert await Story(ctx, n, sampling).run() == plain, strategy
            assert ctx.stats.drafted > 0 or strategy in (PromptLookup(), Suffix())


@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
async def test_right_wrong_and_random_drafts(open_context: OpenContext, n: int, sampling: kv.Sampling) -> None:
    async def run(make: Callable[[list[list[int]], int], Any] | None) -> tuple[list[kv.Generation], kv.Stats]:
        async with open_context() as ctx:
            trunk = await ctx.branch([7] * 20)
            kids = await trunk.fork(n)
            await kv.gather(*(kid.extend([40 + i]) for i, kid in enumerate(kids)))
            strategy = None if make is None else make(runs, ctx.model_info.vocab_size)
            before = ctx.stats
            outs = await kv.gather(*(k.generate(max_tokens=99, sampling=sampling, speculative=strategy) for k in kids))
            runs[:] = runs or [kid.tokens for kid in kids]
            assert ctx.stats.cells_used == 20 + sum(len(kid) - 21 for kid in kids)
            assert ctx.stats.forwards - before.forwards == ctx.stats.steps - before.steps
            return outs, ctx.stats

    runs: list[list[int]] = []
    plain, stats = await run(None)
    steps = stats.steps
    outs, stats = await run(Recorded)
    assert outs == plain
    assert stats.accepted >= 0.9 * stats.drafted > 0
    assert stats.steps < steps / 3
    outs, stats = await run(lambda runs, vocab: Recorded(runs, vocab, offset=1))
    assert outs == plain
    assert stats.accepted == 0 < stats.drafted
    assert stats.steps == steps
    for seed in range(3):
        outs, stats = await run(lambda runs, vocab, seed=seed: RandomTrees(runs, vocab, seed))  # type: ignore[misc]
        assert outs == plain
        assert 0 < stats.accepted < stats.drafted


def held_out(count: int) -> list[tuple[list[Any], list[Any]]]:
    """Messages and tools of questions that the nano model was not trained on."""
    import random

    rng = random.Random("speculation")
    made = []
    for _ in range(count):
        talk = conversation(rng, "eval", rounds=1)
        made.append((talk.messages()[: -len(talk.rounds[-1].messages()) + 1], talk.tools()))
    return made


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("strategy", OF_NANO, ids=lambda strategy: type(strategy).__name__)
@pytest.mark.parametrize("count", one_in(2, [48, 200]))
async def test_held_out_prompts_of_nano(strategy: Any, count: int) -> None:
    async with kv.Context.open(kv.models.nano(), capacity=8192, threads=1, speculative=strategy) as ctx:
        questions = held_out(count)
        for first in range(0, len(questions), 8):
            branches = [await ctx.branch(messages, tools=tools) for messages, tools in questions[first : first + 8]]
            twins = [await branch.fork() for branch in branches]
            fast = await kv.gather(*(branch.generate(max_tokens=60) for branch in branches))
            plain = await kv.gather(*(branch.generate(max_tokens=60, speculative=None) for branch in twins))
            assert fast == plain
            await ctx.keep()
        assert ctx.stats.drafted > ctx.stats.accepted > 0.3 * ctx.stats.generated / 2


async def test_the_torch_backend(tiny_hf_folder: Callable[..., Path]) -> None:
    async with kv.Context.open(tiny_hf_folder("llama"), capacity=1024, kv_dtype="fp32", backend="torch") as ctx:
        trunk = await ctx.branch([7] * 20)
        plain = await (await trunk.fork()).generate(max_tokens=32)
        for strategy in (PromptLookup(adaptive=False), Suffix(adaptive=False), LastTime()):
            drafted = ctx.stats.drafted
            out = await (await trunk.fork()).generate(max_tokens=32, speculative=strategy)
            assert out.tokens == plain.tokens
            assert ctx.stats.drafted > drafted
