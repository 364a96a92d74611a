"""What ends a generation, and what randomness depends on."""

from __future__ import annotations

import pytest

import agentkv as kv

from ..conftest import OpenContext

pytestmark = pytest.mark.anyio

HOT = kv.Sampling(temperature=1.5, seed=7)


async def test_a_replay_with_the_same_seed_repeats_it_and_siblings_differ(open_context: OpenContext) -> None:
    async def run() -> list[list[int]]:
        async with open_context() as ctx:
            trunk = await ctx.branch("Once")
            kids = await trunk.fork(4)
            outs = await kv.gather(*(kid.generate(max_tokens=16, sampling=HOT) for kid in kids))
            assert all(out.seed == 7 for out in outs)
            return [out.tokens for out in outs]

    first = await run()
    assert await run() == first
    assert len({tuple(tokens) for tokens in first}) == 4


async def test_a_rolled_back_branch_repeats_its_draws(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("Once")
        mark = trunk.mark()
        first = await trunk.generate(max_tokens=16, sampling=HOT)
        await trunk.rollback(mark)
        assert (await trunk.generate(max_tokens=16, sampling=HOT)).tokens == first.tokens
        await trunk.rollback(mark)
        half = await trunk.generate(max_tokens=8, sampling=HOT)
        rest = await trunk.generate(max_tokens=8, sampling=HOT)
        assert half.tokens + rest.tokens == first.tokens


async def test_a_seed_that_was_drawn_is_reported_and_repeats(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("Once")
        mark = trunk.mark()
        first = await trunk.generate(max_tokens=16, sampling=kv.Sampling(temperature=1.5))
        assert first.seed is not None
        await trunk.rollback(mark)
        other = await trunk.generate(max_tokens=16, sampling=kv.Sampling(temperature=1.5))
        assert other.seed != first.seed
        await trunk.rollback(mark)
        again = await trunk.generate(max_tokens=16, sampling=kv.Sampling(temperature=1.5, seed=first.seed))
        assert again.tokens == first.tokens


@pytest.mark.parametrize("as_list", [False, True])
async def test_a_stop_string_ends_it(open_context: OpenContext, as_list: bool) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick brown fox")
        mark = trunk.mark()
        free = await trunk.generate(max_tokens=40, sampling=HOT)
        await trunk.rollback(mark)
        stop = free.text[10:13]
        gen = await trunk.generate(max_tokens=40, sampling=HOT, stop=[stop, "never so"] if as_list else stop)
        assert gen.finish_reason == "stop"
        assert gen.text == free.text[: free.text.index(stop)]
        assert gen.tokens == free.tokens[: len(gen.tokens)]
        assert stop in ctx.tokenizer.decode(gen.tokens)
        assert trunk.tokens[-len(gen.tokens) :] == gen.tokens


async def test_end_of_text_ends_it_and_is_kept_out_of_the_text(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        for seed in range(40):
            trunk = await ctx.branch("The")
            gen = await trunk.generate(max_tokens=200, sampling=kv.Sampling(temperature=2.0, seed=seed))
            await trunk.close()
            if gen.finish_reason == "eos":
                break
        assert gen.finish_reason == "eos"
        assert gen.tokens[-1] in ctx.tokenizer.eos_ids
        assert not set(gen.tokens[:-1]) & set(ctx.tokenizer.eos_ids)
        assert gen.text == ctx.tokenizer.decode(gen.tokens)
        assert "<|" not in gen.text


async def test_a_full_context_ends_one_branch_alone(open_context: OpenContext) -> None:
    async with open_context(capacity=64) as ctx:
        trunk = await ctx.branch(list(range(10, 40)))
        a, b = await trunk.fork(2)
        long, short = await kv.gather(a.generate(max_tokens=500), b.generate(max_tokens=10))
        assert (short.finish_reason, len(short.tokens)) == ("length", 10)
        assert long.finish_reason == "context_full"
        assert len(a) == len(trunk) + len(long.tokens)
        assert 64 - 30 - 10 <= len(long.tokens) <= 64 - 30 - 8
        await b.close()
        await a.rollback(30)
        assert (await a.generate(max_tokens=5)).finish_reason == "length"
