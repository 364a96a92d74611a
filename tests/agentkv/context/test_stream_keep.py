"""Leaving a stream: the branch keeps what was read of it, to the bit, however far ahead the generation was."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import replace
from typing import Any

import anyio
import numpy as np
import pytest

import agentkv as kv
from agentkv.spec import PromptLookup, Suffix
from tests.faults import fail_at

from ..conftest import OVER, OpenContext
from ..strategies import RandomTrees

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("failing_caches")]

PROMPT = [7, 8, 9, 7, 8, 9, 7, 8, 9, 40]
WARM = kv.Sampling(temperature=0.9, seed=5, repetition_penalty=0.7, frequency_penalty=0.2)
LOOKUP = PromptLookup(adaptive=False, min_ngram=1, width=4, max_nodes=32)
SUFFIX = Suffix(adaptive=False, max_nodes=32)


async def held(branch: kv.Branch) -> dict[str, Any]:
    """What the engine holds of a branch; what the event loop knows of it agrees."""
    state = await branch.context._core.loop.call(
        lambda engine: {
            "tokens": engine.tokens(branch.id).tolist(),  # type: ignore[attr-defined]
            "cached": engine.n_cached(branch.id),  # type: ignore[attr-defined]
            "stream": engine.rng_stream(branch.id),  # type: ignore[attr-defined]
        }
    )
    assert branch.tokens == state["tokens"]
    return {**state, "cells": branch.context.stats.cells_used}


async def goes_on(branch: kv.Branch, options: dict[str, Any]) -> tuple[bytes, kv.Generation]:
    """The logits at its end, and what it says next, on a fork each."""
    async with await branch.fork() as kid:
        row = (await kid.logits()).tobytes()
    gen = await branch.generate(**{**options, "max_tokens": 6})
    return row, gen


async def check_as_if_no_more(branch: kv.Branch, mark: kv.Mark, left: kv.Generation, options: dict[str, Any]) -> None:
    """The branch, left with `left`, is what a generation of as many tokens makes of it."""
    first = await held(branch), await goes_on(branch, options)
    await branch.rollback(mark)
    if left.tokens:
        whole = await branch.generate(**{**options, "max_tokens": len(left.tokens)})
        reason = left.finish_reason if left.finish_reason in ("eos", "stop", "length") else "cancelled"
        assert left == replace(whole, finish_reason=reason)
    second = await held(branch), await goes_on(branch, options)
    if left.tokens:
        assert first[0] == second[0]
    assert first[0]["tokens"] == second[0]["tokens"]
    assert first[1] == second[1]


@pytest.mark.parametrize("strategy", [None, LOOKUP, SUFFIX, "random"], ids=["plain", "lookup", "suffix", "random"])
@pytest.mark.parametrize("sampling", [kv.Sampling(), WARM], ids=["greedy", "sampled"])
async def test_every_count_of_tokens(open_context: OpenContext, sampling: kv.Sampling, strategy: Any) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        mark = trunk.mark()
        whole = await trunk.generate(max_tokens=16, sampling=sampling)
        if strategy == "random":
            strategy = RandomTrees([trunk.tokens], ctx.model_info.vocab_size)
        options = {"sampling": sampling, "speculative": strategy, "top_logprobs": 2}
        for buffer in (1, 64):
            for count in range(len(whole.tokens) + 1):
                await trunk.rollback(mark)
                read = []
                async with trunk.stream(max_tokens=16, buffer=buffer, **options) as stream:
                    while len(read) < count:
                        read.append((await anext(stream)).id)
                    goal = ctx.stats.forwards + 1
                    while buffer > 1 and ctx.stats.forwards < goal and not stream._job.settled.is_set():
                        await ctx._core.loop.call(lambda _: None)  # the thread runs ahead, or is done
                left = stream.generation
                assert left.tokens == read == whole.tokens[:count]
                assert trunk.tokens == PROMPT + read
                assert (left.finish_reason == "cancelled") is (count < len(whole.tokens))
                await check_as_if_no_more(trunk, mark, left, options)
        assert (ctx.stats.drafted > 0) is (strategy is not None)


@pytest.mark.parametrize("strategy", [None, LOOKUP], ids=["plain", "lookup"])
async def test_cancellation_at_every_point(open_context: OpenContext, strategy: PromptLookup | None) -> None:
    """Every turn of the event loop, and any lead of the thread."""
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        mark = trunk.mark()
        options: dict[str, Any] = {"sampling": WARM, "speculative": strategy}
        counts, rng = set(), random.Random(5)
        for turns in itertools.count():
            if turns >= 60 and len(counts) > 3:  # where the engine is slow, few of the first turns see a token
                break
            streams: list[kv.TokenStream] = []
            read: list[int] = []

            async def follow(buffer: int, read: list[int] = read, streams: list[kv.TokenStream] = streams) -> None:
                streams.append(trunk.stream(max_tokens=24, buffer=buffer, **options))
                async with streams[0] as stream:
                    async for token in stream:
                        read.append(token.id)
                        if len(read) % 3 == 0:
                            await anyio.lowlevel.checkpoint()

            async with anyio.create_task_group() as group:
                group.start_soon(follow, 1 + turns % 7)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                    if turns % 4 == 0:
                        time.sleep(rng.random() * (0.002 if OVER else 0.0002))  # noqa: ASYNC251 - the engine goes on meanwhile
                group.cancel_scope.cancel()
            assert trunk.tokens == PROMPT + read
            counts.add(len(read))
            if streams and streams[0]._begun and streams[0]._begun.settled.is_set():
                assert streams[0].generation.tokens == read
                await check_as_if_no_more(trunk, mark, streams[0].generation, options)
            await trunk.rollback(mark)


async def test_nothing_read_costs_nothing(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        for prompt in (PROMPT, PROMPT[::-1]):
            branch = await ctx.branch(prompt)
            before, row = await held(branch), await branch.logits()
            async with branch.stream(max_tokens=9) as stream:
                pass
            assert (stream.generation.tokens, stream.generation.text) == ([], "")
            assert stream.generation.finish_reason == "cancelled"
            assert await held(branch) == before
            forwards = ctx.stats.forwards
            np.testing.assert_array_equal(await branch.logits(), row)
            assert ctx.stats.forwards == forwards
            await branch.close()


async def test_one_that_ended_by_itself_is_cut_as_well(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        mark = trunk.mark()
        whole = await trunk.generate(max_tokens=9)
        await trunk.rollback(mark)
        async with trunk.stream(max_tokens=9) as stream:
            read = [(await anext(stream)).id, (await anext(stream)).id]
            await stream._job.settled.wait()
            assert stream.generation == whole
            inside = trunk.mark()
            assert len(trunk) == len(PROMPT) + 9
        assert stream.generation.tokens == read == whole.tokens[:2]
        assert stream.generation.finish_reason == "cancelled"
        assert stream.generation.usage == kv.Usage(len(PROMPT), 2)
        assert trunk.tokens == PROMPT + read
        with pytest.raises(kv.InvalidRollback):
            await trunk.rollback(inside)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        await check_as_if_no_more(trunk, mark, stream.generation, {})


async def test_what_was_read_to_its_end_is_whole(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        mark = trunk.mark()
        whole = await trunk.generate(max_tokens=9)
        await trunk.rollback(mark)
        async with trunk.stream(max_tokens=9) as stream:
            async for token in stream:
                if token.index == 8:
                    break  # the last one, though the iterator has not said so
        assert stream.generation == whole
        await trunk.rollback(mark)
        async with trunk.stream(max_tokens=9) as stream:
            read = [token.id async for token in stream]
            await trunk.extend([3])  # the generation is over: the branch is free
        assert stream.generation.tokens == read == whole.tokens
        assert trunk.tokens == [*PROMPT, *read, 3]


async def test_keep_made_leaves_everything(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        whole = await (await trunk.fork()).generate(max_tokens=9)
        async with trunk.stream(max_tokens=9, keep="made") as stream:
            first = await anext(stream)
            await stream._job.settled.wait()
        assert stream.generation == whole
        assert [first.id, *[token.id async for token in stream]] == whole.tokens
        assert trunk.tokens == PROMPT + whole.tokens
        for bad in ("all", None, 3, ["read"]):
            with pytest.raises(kv.InvalidInput, match="keep"):
                trunk.stream(keep=bad)  # type: ignore[arg-type]


async def test_what_failed_after_what_was_read_never_was(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        mark = trunk.mark()
        await fail_at(ctx, 1, after=5)
        async with trunk.stream(max_tokens=50) as stream:
            read = [(await anext(stream)).id]
            await stream._job.settled.wait()
            with pytest.raises(kv.StepFailed):
                _ = stream.generation
        assert (stream.generation.tokens, stream.generation.finish_reason) == (read, "cancelled")
        assert trunk.tokens == PROMPT + read
        await check_as_if_no_more(trunk, mark, stream.generation, {})
        await trunk.rollback(mark)
        await fail_at(ctx, 1, after=5)
        read.clear()
        stream = trunk.stream(max_tokens=50)

        async def follow() -> None:
            async with stream:
                async for token in stream:
                    read.append(token.id)

        with pytest.raises(kv.StepFailed):
            await follow()
        with pytest.raises(kv.StepFailed):
            _ = stream.generation
        assert len(read) == 5
        assert trunk.tokens == PROMPT + read  # nothing of it was lost


async def test_text_that_was_held_back_is_that_of_what_was_kept(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch("The quick brown fox")
        mark = trunk.mark()
        hot = kv.Sampling(temperature=1.5, seed=3)
        free = await trunk.generate(max_tokens=30, sampling=hot)
        stop = [free.text[5:8] + "never so", free.text[12:20]]
        for count in range(1, 16):
            await trunk.rollback(mark)
            async with trunk.stream(max_tokens=30, sampling=hot, stop=stop) as stream:
                shown = [token.text async for token, _ in _zip(stream, count)]
            left = stream.generation
            assert left.text.startswith("".join(shown).rstrip("\ufffd"))
            await check_as_if_no_more(trunk, mark, left, {"sampling": hot, "stop": stop})


async def _zip(stream: kv.TokenStream, count: int) -> Any:
    for index in range(count):
        try:
            yield await anext(stream), index
        except StopAsyncIteration:
            return


async def test_an_error_in_the_block_is_a_way_to_leave(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch(PROMPT)
        stream = trunk.stream(max_tokens=1000)

        async def fail() -> None:
            async with stream:
                await anext(stream)
                await anext(stream)
                raise KeyError

        with pytest.raises(KeyError):
            await fail()
        assert len(trunk) == len(PROMPT) + 2
        assert len(stream.generation.tokens) == 2
