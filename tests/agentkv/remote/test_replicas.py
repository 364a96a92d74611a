"""Trees stay with their server, as long as that has room and answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import httpx
import pytest

from agentkv.remote.http import ServerConnection
from agentkv.remote.replicas import Replica, Replicas, share
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def some(count: int, most_running: int = 1000) -> Replicas:
    urls = [f"http://replica-{i}:8000/v1/" for i in range(count)]
    return Replicas([ServerConnection(httpx.AsyncClient(base_url=url)) for url in urls], most_running)


async def host_of(replicas: Replicas, root: int | None) -> str:
    async with replicas.acquire(root) as replica:
        return replica.connection.host


async def test_a_tree_has_its_server_and_trees_spread() -> None:
    replicas = some(5)
    hosts = {root: await host_of(replicas, root) for root in range(500)}
    assert all([await host_of(replicas, root) == host for root, host in hosts.items()])
    assert min(Counter(hosts.values()).values()) > 60
    fewer = some(4)  # without the last one: only its own trees move
    for root, host in hosts.items():
        assert "replica-4" in host or await host_of(fewer, root) == host


async def test_one_that_has_more_than_its_share_gives_to_the_next() -> None:
    replicas = some(4)
    async with AsyncExitStack() as stack:
        places = [await stack.enter_async_context(replicas.acquire(7)) for _ in range(200)]
        running = sorted(replica.running for replica in replicas.all)
    assert sum(running) == 200
    assert running[-1] <= share(50) + 1
    assert all(place is places[0] for place in places[:16])
    assert all(replica.running == 0 for replica in replicas.all)


async def test_who_finds_no_place_waits_for_one() -> None:
    replicas = some(1, most_running=2)
    entered: list[int] = []

    async def one(number: int) -> None:
        async with replicas.acquire(number):
            entered.append(number)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(one(number)) for number in range(20)]
    await asyncio.sleep(0)
    for task in tasks[5:10]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(entered) == 15
    assert replicas.all[0].running == 0


async def test_a_place_goes_to_whoever_can_use_it() -> None:
    replicas = some(2, most_running=1)
    one, two = replicas.all
    async with AsyncExitStack() as stack:
        while not (one.running and two.running):
            await stack.enter_async_context(replicas.acquire(None))
        picky = asyncio.create_task(placed(replicas, {one}))
        other = asyncio.create_task(placed(replicas, set()))
        await asyncio.sleep(0)
        one.running -= 1
        replicas._call_next()
        assert await asyncio.wait_for(other, PATIENCE) is one
        assert not picky.done()
        one.running += 1
    assert await asyncio.wait_for(picky, PATIENCE) is two


async def placed(replicas: Replicas, broken: set[Replica]) -> Replica:
    async with replicas.acquire(7, broken) as replica:
        return replica


async def test_servers_of_one_host_are_told_apart() -> None:
    urls = [f"http://gateway/{name}/v1/" for name in ("a", "b")]
    replicas = Replicas([ServerConnection(httpx.AsyncClient(base_url=url)) for url in urls], 8)
    had = Counter([(await placed_by(replicas, root)).connection.url for root in range(64)])
    assert min(had[url] for url in urls) > 10


async def placed_by(replicas: Replicas, root: int) -> Replica:
    async with replicas.acquire(root) as replica:
        return replica


async def test_a_turn_that_is_cancelled_passes_on() -> None:
    replicas = some(1, most_running=1)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(replicas.acquire(1))
        waiting = [asyncio.create_task(host_of(replicas, 1)) for _ in range(3)]
        await asyncio.sleep(0)
        await stack.aclose()  # the first of them may go now
        waiting[0].cancel()
    told = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), PATIENCE)
    assert told[1:] == ["replica-0:8000"] * 2


async def test_one_that_fails_is_left_alone_for_a_while() -> None:
    replicas = some(2)
    first = await host_of(replicas, 3)
    bad = next(replica for replica in replicas.all if replica.connection.host == first)
    bad.failed("it is gone", None)
    assert await host_of(replicas, 3) != first
    for replica in replicas.all:
        replica.failed("it is gone", 30)
    assert await host_of(replicas, 3) == first  # all are bad: the tree's own is asked
    bad.answered()
    assert bad.is_healthy


async def test_any_number_of_failures_is_one_more() -> None:
    (replica,) = some(1).all
    for _ in range(5000):
        replica.failed("it is gone", None)
    assert not replica.is_healthy
    replica.failed("it is busy", 0)
    assert replica.is_healthy
