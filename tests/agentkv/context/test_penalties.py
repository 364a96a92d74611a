"""Penalties, biases and the likeliest tokens of a generation, held to the model's own logits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import agentkv as kv

from ..conftest import OpenContext
from ..strategies import RandomTrees

pytestmark = pytest.mark.anyio

PROMPT = [7, 8, 9, 7, 8, 9, 7, 8, 9, 40]


async def greedy(branch: kv.Branch, sampling: kv.Sampling, count: int) -> list[int]:
    """What a loop of one's own makes of the logits, by the definitions that `kv.Sampling` states."""
    made: Counter[int] = Counter()
    tokens: list[int] = []
    while len(tokens) < count:
        row = (await branch.logits()).copy()
        for token in set(branch.tokens):
            row[token] = (
                (row[token] * sampling.repetition_penalty)
                if row[token] < 0
                else row[token] / np.float32(sampling.repetition_penalty)
            )
        for token, times in made.items():
            row[token] -= np.float32(sampling.presence_penalty) + np.float32(sampling.frequency_penalty) * times
        for token, bias in (sampling.logit_bias or {}).items():
            row[token] += np.float32(bias)
        token = int(row.argmax())
        tokens.append(token)
        made[token] += 1
        await branch.extend([token])
        if token in branch.context.tokenizer.eos_ids:
            break
    return tokens


@pytest.mark.parametrize(
    "options",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.4},
        {"frequency_penalty": -2.0},
        {"presence_penalty": 0.7, "frequency_penalty": 0.3, "repetition_penalty": 1.3, "logit_bias": {7: 2.0, 8: -1.0}},
    ],
    ids=["presence", "frequency", "negative", "all"],
)
async def test_a_loop_of_ones_own_says_the_same(open_context: OpenContext, options: dict[str, Any]) -> None:
    async with open_context() as ctx:
        sampling = kv.Sampling(**options)
        branch, twin = await ctx.branch(PROMPT), await ctx.branch(PROMPT)
        mark = branch.mark()
        gen = await branch.generate(max_tokens=40, sampling=sampling)
        assert gen.tokens == await greedy(twin, sampling, 40)
        strategy = RandomTrees([branch.tokens], ctx.model_info.vocab_size)
        await branch.rollback(mark)
        assert await branch.generate(max_tokens=40, sampling=sampling, speculative=strategy) == gen
        assert ctx.stats.accepted > 0


async def test_each_generation_counts_anew(open_context: OpenContext) -> None:
    """What the prompt holds, and what earlier generations made, is not counted."""
    sampling = kv.Sampling(presence_penalty=2, frequency_penalty=2)
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        one_by_one, whole = await trunk.fork(2)
        free = await trunk.generate(max_tokens=40)
        singles = [await one_by_one.generate(max_tokens=1, sampling=sampling) for _ in free.tokens]
        assert [single.tokens for single in singles] == [[token] for token in free.tokens]
        assert (await whole.generate(max_tokens=40, sampling=sampling)).tokens != free.tokens


async def test_a_bias_rules_tokens_in_and_out(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch(PROMPT)
        mark = branch.mark()
        free = await branch.generate(max_tokens=12)
        await branch.rollback(mark)
        banned = {token: -100.0 for token in free.tokens}
        other = await branch.generate(max_tokens=12, sampling=kv.Sampling(logit_bias=banned))
        assert not set(other.tokens) & set(free.tokens)
        await branch.rollback(mark)
        forced = await branch.generate(max_tokens=3, sampling=kv.Sampling(temperature=1, logit_bias={77: 100}))
        assert forced.tokens == [77, 77, 77]
        assert all(logprob < -1 for logprob in forced.logprobs)  # the model's own
        before = branch.tokens
        vocab = ctx.model_info.vocab_size
        with pytest.raises(kv.InvalidInput, match=f"token id {vocab}"):
            await branch.generate(sampling=kv.Sampling(logit_bias={vocab: 1}))
        with pytest.raises(kv.InvalidInput, match=f"token id {vocab}"):
            async with branch.stream(sampling=kv.Sampling(logit_bias={vocab: 1})):
                pytest.fail("entered")
        assert branch.tokens == before
        await branch.logits()


def log_softmax(row: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = row.astype(np.float64)
    normal: NDArray[np.float64] = wide - np.log(np.exp(wide - wide.max()).sum()) - wide.max()
    return normal


async def test_the_likeliest_tokens_are_the_models_own(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch, twin = await ctx.branch(PROMPT), await ctx.branch(PROMPT)
        mark = branch.mark()
        sampling = kv.Sampling(temperature=0.8, seed=3, presence_penalty=-1, logit_bias={50: 3})
        gen = await branch.generate(max_tokens=30, sampling=sampling, top_logprobs=5)
        assert len(gen.top_logprobs) == len(gen.tokens)
        for token, logprob, likely in zip(gen.tokens, gen.logprobs, gen.top_logprobs, strict=True):
            exact = log_softmax(await twin.logits())
            order = sorted(range(len(exact)), key=lambda i: (-exact[i], i))
            assert [top.id for top in likely] == order[:5]
            np.testing.assert_allclose([top.logprob for top in likely], exact[order[:5]], atol=1e-5)
            assert [top.text for top in likely] == [ctx.tokenizer.decode([i], skip_special=False) for i in order[:5]]
            assert logprob in [top.logprob for top in likely if top.id == token] or token not in order[:5]
            await twin.extend([token])
        strategy = RandomTrees([branch.tokens], ctx.model_info.vocab_size)
        await branch.rollback(mark)
        again = await branch.generate(max_tokens=30, sampling=sampling, top_logprobs=5, speculative=strategy)
        assert again == gen
        assert ctx.stats.accepted > 0


async def test_a_stream_tells_them_with_each_token(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        mark = trunk.mark()
        gen = await trunk.generate(max_tokens=9, top_logprobs=20)
        await trunk.rollback(mark)
        async with trunk.stream(max_tokens=9, top_logprobs=20) as stream:
            tokens = [token async for token in stream]
        assert [token.top_logprobs for token in tokens] == gen.top_logprobs == stream.generation.top_logprobs
        assert {len(likely) for likely in gen.top_logprobs} == {20}
        assert stream.generation == gen


async def test_nothing_is_told_that_was_not_asked_for(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        assert (await trunk.generate(max_tokens=4)).top_logprobs == []
        async with trunk.stream(max_tokens=4) as stream:
            assert [token.top_logprobs async for token in stream] == [()] * 4
        for bad in (-1, 21, 2.0, True, None):
            with pytest.raises(kv.InvalidInput, match="top_logprobs"):
                await trunk.generate(top_logprobs=bad)  # type: ignore[arg-type]
