"""A semaphore's places are there again whatever ends the block that has them, or the wait for one."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import checkpoint

from agentkv._aio.lock import Lock, Semaphore
from tests.waiting import PATIENCE

from ..torn_down import torn_down_at

pytestmark = pytest.mark.anyio
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio tears no coroutine down that waits


async def tasks_wait(semaphore: Semaphore, count: int) -> None:
    with anyio.fail_after(PATIENCE):
        while len(semaphore._waiting) < count:
            await checkpoint()


async def test_so_many_are_in_at_a_time() -> None:
    semaphore, inside, most = Semaphore(2), 0, 0

    async def enter() -> None:
        nonlocal inside, most
        async with semaphore:
            inside += 1
            most = max(most, inside)
            await checkpoint()
            inside -= 1

    async with anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(enter)
    assert (most, semaphore.value) == (2, 2)


async def test_they_come_in_in_the_order_in_which_they_came() -> None:
    lock, entered = Lock(), list[int]()

    async def enter(number: int) -> None:
        async with lock:
            entered.append(number)

    await lock.acquire()
    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(enter, number)
            await tasks_wait(lock, number + 1)
        lock.release()
    assert entered == [0, 1, 2, 3, 4]


async def test_what_is_cancelled_while_it_waits_has_no_place() -> None:
    lock = Lock()
    async with lock:
        async with anyio.create_task_group() as group:
            group.start_soon(lock.acquire)
            await tasks_wait(lock, 1)
            group.cancel_scope.cancel()
        assert not lock._waiting
    assert lock.value == 1


async def test_a_place_that_comes_with_a_cancellation_goes_to_the_next() -> None:
    lock = Lock()
    await lock.acquire()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group, anyio.create_task_group() as doomed:
            doomed.start_soon(work, lock)
            await tasks_wait(lock, 1)
            group.start_soon(work, lock)
            await tasks_wait(lock, 2)
            lock.release()  # to the one that is cancelled in the same tick
            doomed.cancel_scope.cancel()
    assert lock.value == 1


async def work(lock: Lock) -> None:
    async with lock:
        await checkpoint()
        await checkpoint()


@on_asyncio
async def test_a_coroutine_that_is_torn_down_inside_of_the_block_gives_its_place_back() -> None:
    lock = Lock()
    for suspension in range(10):
        torn = await torn_down_at(work(lock), suspension)
        assert lock.value == 1
        if not torn:
            break
    assert 0 < suspension < 10


@on_asyncio
async def test_a_coroutine_that_is_torn_down_while_it_waits_has_no_place() -> None:
    lock = Lock()
    await lock.acquire()
    assert await torn_down_at(work(lock), 0)
    assert not lock._waiting
    lock.release()
    assert lock.value == 1


@on_asyncio
async def test_a_place_that_was_given_to_a_coroutine_that_is_torn_down_goes_to_the_next() -> None:
    lock = Lock()
    await lock.acquire()
    waits = work(lock)
    waits.send(None)
    lock.release()  # to it, which does not come to know
    assert lock.value == 0
    waits.close()
    assert lock.value == 1
