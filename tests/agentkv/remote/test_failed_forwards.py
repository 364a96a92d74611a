"""Forwards that fail on a server: the SDK's error as in this process, or another server's answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import agentkv as kv
from agentkv._aio.loop_thread import LoopThread
from tests.faults import SERVERS, fail_at

from ..serve.conftest import Served
from .over_server import over_agentkv, own_server

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("failing_caches")]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def folder(tiny_exported_folder: Callable[..., Path]) -> Path:
    return tiny_exported_folder("llama")


async def test_a_forward_that_fails_ends_its_own_verb(folder: Path) -> None:
    async with over_agentkv(folder) as ctx:
        branch = await ctx.branch("The quick brown fox")
        other, before = await branch.fork(), branch.tokens
        await fail_at(ctx, 1)
        with pytest.raises(kv.StepFailed, match="the model failed"):
            await branch.logits()
        assert branch.tokens == before
        await fail_at(ctx, 1, after=3)
        with pytest.raises(kv.StepFailed):
            await branch.generate(max_tokens=20)
        assert branch.tokens[: len(before)] == before
        assert len(branch) < len(before) + 20
        made = await branch.generate(max_tokens=20)
        assert branch.tokens[-len(made.tokens) :] == made.tokens
        assert ctx.servers[0].failed == 2
        assert (await other.generate(max_tokens=5)).finish_reason == "length"


async def test_another_server_goes_on_with_it(folder: Path) -> None:
    with ExitStack() as stack:
        threads: list[LoopThread[Served]] = []
        for _ in range(2):
            threads.append(LoopThread(lambda: own_server(folder, kv_dtype="fp32", capacity=2048, threads=1)))
            stack.callback(threads[-1].close)
        urls = [thread.value.url for thread in threads]
        async with kv.Context.connect(urls, backend="agentkv") as ctx:
            branch = await ctx.branch("The quick brown fox")
            other = await branch.fork()
            expected = await other.generate(max_tokens=20)
            has_it = next(i for i, server in enumerate(ctx.servers) if server.requests)
            SERVERS[ctx] = (threads[has_it], threads[has_it].value.ctx)
            await fail_at(ctx, 1, after=5)
            assert (await branch.generate(max_tokens=20)).tokens == expected.tokens
            assert [server.failed for server in ctx.servers] == [int(i == has_it) for i in range(2)]
            assert ctx.stats.retries == 1
