"""Attempts at one call of a tool: exceptions, retries, timeouts, threads that keep their slot, cancellation."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import anyio
import pytest

import agentkv as kv
from agentkv._aio.threads import ToolThreads
from tests.waiting import NEVER, PATIENCE, SOON, until

from .table import until_idle

pytestmark = pytest.mark.anyio


async def test_an_exception_is_read_by_the_model_after_its_retries(table: Any) -> None:
    seen = []

    @kv.tool(retries=2, backoff=0.001)
    async def fail(x: int) -> None:
        seen.append(x)
        raise ValueError("out of luck")

    async with table(fail) as desk:
        record = await desk.run("fail", x=1)
        assert seen == [1, 1, 1]
        assert (record.error, record.status, record.attempts) == ("ValueError: out of luck", "failed", 3)
        assert record.content == '{"error": "ValueError: out of luck"}'
        assert desk.kinds() == ["CallStarted", "Retried", "Retried", "CallFinished"]
        assert [event.attempt for event in desk.events[1:3]] == [1, 2]


async def test_a_tool_may_end_the_turn(table: Any) -> None:
    @kv.tool(on_error="raise", retries=1, backoff=0)
    def fail() -> None:
        raise KeyError("gone")

    async with table(fail) as desk:
        call = desk.call("fail")
        with pytest.raises(kv.ToolFailed, match="tool fail failed: KeyError") as caught:
            await call.run()
        assert isinstance(caught.value.__cause__, KeyError)
        assert (call.record.status, call.record.attempts) == ("failed", 2)


async def test_retry_goes_to_the_model_and_not_to_the_function(table: Any) -> None:
    @kv.tool(retries=5, on_error="raise")
    async def find(city: str) -> None:
        raise kv.Retry("unknown city")

    async with table(find) as desk:
        record = await desk.run("find", city="Olso")
        assert (record.status, record.error, record.attempts) == ("retry", "unknown city", 1)
        assert record.content == '{"error": "unknown city"}'
        assert desk.events[1] == kv.events.Retried("find", "unknown city", 1)


async def test_a_slow_attempt_is_cancelled_and_counts_as_an_exception(table: Any) -> None:
    cancelled = []

    @kv.tool(timeout=SOON, retries=1, backoff=0)
    async def slow() -> None:
        try:
            await anyio.sleep(NEVER)
        finally:
            cancelled.append(1)

    async with table(slow) as desk:
        record = await desk.run("slow")
        assert (record.status, record.attempts, cancelled) == ("timeout", 2, [1, 1])
        assert record.error == f"it took longer than {SOON} s"


async def test_a_timeout_of_the_tools_own_is_an_exception_like_others(table: Any) -> None:
    @kv.tool(timeout=PATIENCE)
    async def slow() -> None:
        raise TimeoutError("upstream")

    async with table(slow) as desk:
        assert (await desk.run("slow")).status == "failed"


async def test_a_thread_that_timed_out_keeps_its_slot_until_it_returns(table: Any) -> None:
    release = threading.Event()

    @kv.tool(timeout=SOON)
    def stuck() -> None:
        release.wait(PATIENCE)

    @kv.tool
    def quick() -> int:
        return 1

    async with table(stuck, quick) as desk:
        try:
            while desk.threads.busy < 4:  # one whose time was up before its thread began has left its slot
                assert (await desk.run("stuck")).status == "timeout"
            with anyio.move_on_after(SOON) as scope:  # there is no slot left
                await desk.run("quick")
            assert scope.cancelled_caught
            assert desk.threads.busy == 4
        finally:
            release.set()
        await until_idle(desk.threads)
        assert (await desk.run("quick")).result == 1
        await until_idle(desk.threads)


@pytest.mark.parametrize("stage", ["wait", "thread", "approval", "backoff"])
async def test_a_cancelled_call_has_a_record(table: Any, stage: str) -> None:
    begun, release = threading.Event(), threading.Event()

    @kv.tool
    async def wait() -> None:
        begun.set()
        await anyio.sleep(NEVER)

    @kv.tool
    def thread() -> None:
        begun.set()
        release.wait(PATIENCE)

    @kv.tool(approve=True)
    async def approval() -> None: ...

    @kv.tool(retries=1, backoff=NEVER)
    async def backoff() -> None:
        raise ValueError

    async with table(wait, thread, approval, backoff) as desk:
        desk.answer = lambda asked: begun.set()
        call = desk.call(stage)
        async with anyio.create_task_group() as group:
            group.start_soon(call.run)
            await until(lambda: begun.is_set() or "Retried" in desk.kinds())
            group.cancel_scope.cancel()
        release.set()
        assert (call.record.status, call.record.ran) == ("cancelled", stage != "approval")
        await until_idle(desk.threads)


async def test_cancelling_threads_at_any_moment_leaks_no_slot() -> None:
    threads, runs = ToolThreads(3), []

    rng = random.Random(5)

    async def one() -> None:
        with anyio.move_on_after(rng.random() * 0.012):
            await (await threads.acquire()).run(lambda: runs.append(time.sleep(rng.random() * 0.002)))

    async with anyio.create_task_group() as group:
        for _ in range(150):
            group.start_soon(one)
    await until_idle(threads)
    for _ in range(3):
        await (await threads.acquire()).run(lambda: None)
    await until_idle(threads)
