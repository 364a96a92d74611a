"""Servers of one model whose caches are not the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio.to_thread
import pytest

import agentkv as kv
from agentkv._aio.loop_thread import LoopThread
from tests.waiting import until

from ..serve.conftest import Served
from .faulty_proxy import hangs_up, proxied
from .over_server import own_server

pytestmark = pytest.mark.anyio

HOW: dict[str, Any] = {"max_tokens": 20, "sampling": kv.Sampling(logit_bias={2: -100})}


@contextmanager
def nano(**options: Any) -> Iterator[Served]:
    thread = LoopThread(lambda: own_server(kv.models.nano(), **{"capacity": 4096, "threads": 1} | options))
    try:
        yield thread.value
    finally:
        thread.close()


async def all_may_answer(ctx: kv.Context) -> None:
    """One that did not answer is left alone for a while."""
    await until(lambda: all(server.answers for server in ctx.servers))


@asynccontextmanager
async def connected_before(late: Served, well: Served) -> AsyncIterator[kv.Context]:
    """A Context that both may answer, opened as one of them did not."""
    thread = LoopThread(lambda: proxied(late.url))
    thread.value.faults.extend([hangs_up] * 2)
    try:
        async with kv.Context.connect([thread.value.url, well.url], backend="agentkv", retries=1) as ctx:
            thread.value.faults.clear()
            await all_may_answer(ctx)
            yield ctx
    finally:
        thread.close()


async def roots(ctx: kv.Context, count: int = 16) -> list[kv.Branch]:
    """So many that each of two servers has some, but for once in 32,768 runs."""
    return [await ctx.branch([100 + index, *([7] * 99)]) for index in range(count)]


@pytest.mark.parametrize("other", [{"window": 32}, {"quantize_after": 16}, {"kv_dtype": "int8"}])
async def test_no_bits_are_promised_over_those_that_differ(
    other: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with nano() as one, nano(**other) as two:
        async with kv.Context.connect([one.url, two.url], backend="agentkv") as ctx:
            assert not ctx.model_info.bit_exact
            assert "the caches of the servers differ" in caplog.text
            for branch in await roots(ctx, 4):  # either may answer
                assert len((await branch.generate(**HOW)).tokens) == 20


async def test_what_is_known_of_one_cache() -> None:
    with nano(window=64, sinks=4, kv_dtype="fp32") as served:
        async with kv.Context.connect(served.url, backend="agentkv") as ctx:
            told = ctx.model_info
            assert (told.window, told.sinks, told.kv_dtype, told.quantize_after) == (64, 4, "fp32", None)
            assert told.cache == served.ctx.model_info.cache == "fp32, a window of 64 behind 4"


@pytest.mark.parametrize("late", [{"window": 32}, {"quantize_after": 16}, {"kv_dtype": "int8"}])
async def test_one_that_comes_with_another_cache_answers_nothing(local: kv.Context, late: dict[str, Any]) -> None:
    with nano(**late) as served, nano() as well:
        async with connected_before(served, well) as ctx:
            assert ctx.model_info.bit_exact
            there, here = await roots(ctx), await roots(local)
            for branch, other in zip(there, here, strict=True):
                assert (await branch.generate(**HOW)).tokens == (await other.generate(**HOW)).tokens
            assert [server.failed > 1 for server in ctx.servers] == [True, False]  # it was asked, and refused


async def test_one_that_has_too_little_room_leaves_it_to_the_other() -> None:
    with nano(capacity=64) as small, nano() as well:
        async with connected_before(small, well) as ctx:
            for branch in await roots(ctx):
                assert len((await branch.generate(**HOW)).tokens) == 20
            assert all(server.answers for server in ctx.servers)


async def test_a_generation_that_fills_one_goes_on_at_the_other(local: kv.Context) -> None:
    with nano(capacity=110) as small, nano() as well:
        async with connected_before(small, well) as ctx:
            for branch, here in zip(await roots(ctx), await roots(local), strict=True):
                generation = await branch.generate(**HOW)
                assert (generation.finish_reason, generation.tokens) == ("length", (await here.generate(**HOW)).tokens)
            assert ctx.stats.retries > 0
            assert all(server.answers for server in ctx.servers)


@pytest.mark.parametrize("policy", [None, kv.overflow.DropOldest()])
async def test_what_others_hold_of_a_server_ends_a_generation(policy: kv.overflow.Overflow | None) -> None:
    thread = LoopThread(lambda: own_server(kv.models.nano(), capacity=600, threads=1))
    served = thread.value
    others = await anyio.to_thread.run_sync(thread.wait, served.ctx.branch([9] * 500))
    async with kv.Context.connect(served.url, backend="agentkv", retries=1, overflow=policy) as ctx:
        branch = await ctx.branch([5] * 80)
        generation = await branch.generate(max_tokens=200, sampling=kv.Sampling(logit_bias={2: -100}))
        assert (generation.finish_reason, len(branch)) == ("context_full", 101)
    assert len(others) == 500
    thread.close()
