"""A server that is killed, restarted, and cancelled at every point."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import anyio
import pytest

import agentkv as kv

from .conftest import PYTHON, until
from .server import VLLMServer

pytestmark = pytest.mark.anyio
ENDLESS = kv.Sampling(logit_bias={2: -100})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_500_cancellations_leave_nothing_running(server: VLLMServer, ctx: kv.Context) -> None:
    rng = random.Random(1)
    trunk = await ctx.branch([5] * 100)

    async def one(delay: float) -> None:
        async with await trunk.fork() as branch:
            with anyio.move_on_after(delay):
                await branch.generate(max_tokens=2000, sampling=ENDLESS)

    for _ in range(25):
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(one, rng.random() * 0.3)
    await until(lambda: not server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting"))
    assert len(ctx.branches) == 1


@pytest.fixture
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    assert PYTHON is not None
    server = VLLMServer(PYTHON, tmp_path_factory.mktemp("mortal") / "log")
    yield server
    server.kill()


async def test_a_stream_survives_a_server_that_is_killed_and_restarted(mortal: VLLMServer) -> None:
    async with kv.Context.connect(mortal.url, retries=100) as ctx:
        branch = await ctx.branch([5] * 100)
        other = await branch.fork()
        async with branch.stream(max_tokens=1500, sampling=ENDLESS) as tokens:
            read = [await anext(tokens) for _ in range(10)]
            mortal.kill()
            restart = threading.Thread(target=mortal.start)
            restart.start()
            read += [token async for token in tokens if token.id >= 0]
        restart.join()
        assert ctx.stats.retries > 0
        expected = await other.generate(max_tokens=1500, sampling=ENDLESS)
        assert [token.id for token in read] == expected.tokens
