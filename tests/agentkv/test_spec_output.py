"""Speculation changes how many forwards a generation takes and nothing else: what it says is the same to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest

import agentkv as kv
from agentkv.spec import DraftModel, PromptLookup
from examples.nano.data import conversation

from .conftest import OpenContext
from .strategies import LastTime, RandomTrees, Recorded

pytestmark = pytest.mark.anyio

GREEDY = kv.Sampling()
WARM = kv.Sampling(temperature=0.9, top_k=20, top_p=0.95, repetition_penalty=0.7, seed=11)
Open = Callable[..., AbstractAsyncContextManager[kv.Context]]


@pytest.fixture(params=["tiny", "nano"])
def open_model(request: pytest.FixtureRequest) -> Open:
    if request.param == "tiny":
        opened: Open = request.getfixturevalue("open_context")
        return opened
    return lambda **options: kv.Context.open(kv.models.nano(), capacity=4096, kv_dtype="fp32", threads=1, **options)


class Story:
    """Branches that fork, roll back, are cancelled and are streamed, and all that they said."""

    def __init__(self, ctx: kv.Context, n: int, sampling: kv.Sampling) -> None:
        self.ctx = ctx
        self.n = n
        self.options: dict[str, Any] = {"max_tokens": 24, "sampling": sampling}
        self.said: list[Any] = []

    async def generate(self, branches: Sequence[kv.Branch]) -> None:
        outs = await kv.gather(*(branch.generate(**self.options) for branch in branches))
        self.said += [(out.tokens, out.logprobs, out.text, out.finish_reason) for out in outs]

    async def cancel(self, branches: Sequence[kv.Branch]) -> None:
        """Cuts generations short; what they had made is the beginning of what they say when they are left alone."""
        marks = [branch.mark() for branch in branches]
        with anyio.move_on_after(0.001):
            await kv.gather(*(branch.generate(**self.options) for branch in branches))
        cut = [branch.tokens for branch in branches]
        for branch, mark in zip(branches, marks, strict=True):
            await branch.rollback(mark)
        await self.generate(branches)
        for branch, tokens, mark in zip(branches, cut, marks, strict=True):
            assert branch.tokens[: len(tokens)] == tokens
            await branch.rollback(mark)

    async def stream(self, branch: kv.Branch, take: int) -> None:
        """Reads the first tokens of a stream, forks it as it runs, and forgets the rest."""
        length = len(branch)
        async with branch.stream(**self.options, buffer=4) as stream:
            taken = [token async for token, _ in _zip(stream, range(take))]
            async with await branch.fork() as kid:
                held = kid.tokens
        assert branch.tokens[: len(held)] == held or held[: len(branch)] == branch.tokens
        self.said.append([(token.id, token.logprob) for token in taken])
        await branch.rollback(length + min(take, len(taken)))

    async def run(self) -> list[Any]:
        trunk = await self.ctx.branch([7] * 20)
        kids = await trunk.fork(self.n)
        await kv.gather(*(kid.extend([40 + i % 5, 41, 7, 7]) for i, kid in enumerate(kids)))
        marks = [kid.mark() for kid in kids]
        await self.generate(kids)
        grandkids = [await kid.fork() for kid in kids[::2]]
        for kid, mark in list(zip(kids, marks, strict=True))[1::2]:
            await kid.rollback(mark)
        await self.cancel(kids)
        for take, kid in enumerate(kids[:3], 2):
            await self.stream(kid, take)
        everyone = [*kids, *grandkids][:16]
        await kids[0].adopt(everyone[-1])
        await self.generate(everyone)
        self.said += [branch.tokens for branch in everyone]
        self.said += [(await branch.logits()).tobytes() for branch in everyone]
        await self.ctx.keep(everyone)
        self.said.append(self.ctx.stats.cells_used)
        return self.said


async def _zip(stream: kv.TokenStream, counts: range) -> Any:
    for count in counts:
        try:
            yield await anext(stream), count
        except StopAsyncIteration:
            return


@pytest.mark.parametrize("n", [1, 2, 8, 16])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
async def test_the_same_story_with_and_without(open_model: Open, n: int, sampling: kv.Sampling) -> None:
    async with open_model() as ctx:
        plain = await Story(ctx, n, sampling).run()
        assert ctx.stats.drafted == 0
        runs = [tokens for tokens in plain if isinstance(tokens, list)]
        vocab, path = ctx.model_info.vocab_size, ctx.model_info.path
    strategies: list[Any] = [
        PromptLookup(),
        PromptLookup(adaptive=False, min_ngram=1, width=4, max_nodes=32),
        LastTime(),
        RandomTrees(runs, vocab, seed=n),
        DraftModel(path, adaptive=False, width=2, top_k=3),
    ]
    for strategy in strategies:
        async with open_model(speculative=strategy) as ctx:
            assert await Story(ctx, n, sampling).run() == plain, strategy
            assert ctx.stats.drafted > 0 or strategy == PromptLookup()


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
async def test_two_hundred_held_out_prompts_of_nano() -> None:
    strategy = PromptLookup(adaptive=False)
    async with kv.Context.open(kv.models.nano(), capacity=8192, threads=1) as ctx:
        questions = held_out(200)
        for first in range(0, len(questions), 8):
            branches = [await ctx.branch(messages, tools=tools) for messages, tools in questions[first : first + 8]]
            twins = [await branch.fork() for branch in branches]
            fast = await kv.gather(*(branch.generate(max_tokens=60, speculative=strategy) for branch in branches))
            plain = await kv.gather(*(branch.generate(max_tokens=60) for branch in twins))
            assert fast == plain
            await ctx.keep()
        assert ctx.stats.drafted > ctx.stats.accepted > 0.3 * ctx.stats.generated / 2


async def test_the_torch_backend(tiny_hf_folder: Callable[..., Path]) -> None:
    async with kv.Context.open(tiny_hf_folder("llama"), capacity=1024, kv_dtype="fp32") as ctx:
        trunk = await ctx.branch([7] * 20)
        plain = await (await trunk.fork()).generate(max_tokens=32)
        for strategy in (PromptLookup(adaptive=False), LastTime()):
            drafted = ctx.stats.drafted
            out = await (await trunk.fork()).generate(max_tokens=32, speculative=strategy)
            assert out.tokens == plain.tokens
            assert ctx.stats.drafted > drafted
