"""What the server computes, by its own count: each token once, but for a block here and there."""

from __future__ import annotations

import random

import pytest

import agentkv as kv

from .conftest import until
from .server import BLOCK, VLLMServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def some_tokens(count: int) -> list[int]:
    return [random.randrange(20, 1000) for _ in range(count)]


async def test_forks_share_their_trunk(server: VLLMServer, ctx: kv.Context) -> None:
    trunk, suffix = some_tokens(2048), 12
    before = server.computed
    branch = await ctx.branch(trunk)
    kids = await branch.fork(8)
    for kid in kids:
        await kid.extend(some_tokens(suffix))
    await kv.gather(*(kid.generate(max_tokens=8) for kid in kids))
    assert server.computed - before <= 2048 + 8 * (suffix + BLOCK)


async def test_forks_of_a_trunk_that_nobody_computed_share_it_too(server: VLLMServer, ctx: kv.Context) -> None:
    before = server.computed
    branch = await ctx.branch()
    for _ in range(10):
        await branch.extend(some_tokens(200))  # few at a time: they wait for the first who needs them
    kids = await branch.fork(8)
    await kv.gather(*(kid.generate(max_tokens=8) for kid in kids))
    assert server.computed - before <= 2000 + 8 * 2 * BLOCK


async def test_rollback_and_adoption_compute_nothing_anew(server: VLLMServer, ctx: kv.Context) -> None:
    branch = await ctx.branch(some_tokens(1000))
    mark = branch.mark()
    before = server.computed
    for _ in range(5):
        await branch.generate(max_tokens=8)
        await branch.rollback(mark)
    kid = await branch.fork()
    made = len((await kid.generate(max_tokens=40)).tokens)
    await branch.adopt(kid)
    await branch.generate(max_tokens=8)
    assert server.computed - before <= 7 * 2 * BLOCK + made


async def test_a_conversation_computes_each_token_once(server: VLLMServer, ctx: kv.Context) -> None:
    branch = await ctx.branch(some_tokens(64))
    before, turns = server.computed, 20
    for _ in range(turns):
        await branch.extend(some_tokens(40))
        await branch.generate(max_tokens=24, sampling=kv.Sampling(logit_bias={2: -100}))
    assert server.computed - before <= 64 + turns * (40 + BLOCK)
    counted = server.computed - before
    await until(lambda: ctx.stats.prefilled == counted)  # a count comes behind the last token that it is of
