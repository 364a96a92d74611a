"""Event loops on threads of their own: whoever waits for one hears of its end."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

import pytest

import agentkv as kv
from agentkv._aio.loop_thread import LoopPortal, LoopThread
from tests.waiting import NEVER, PATIENCE, until_sync


def elsewhere(work: Callable[[], object]) -> Future[object]:
    """What it comes to on another thread, which may hang."""
    outcome: Future[object] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


@asynccontextmanager
async def nothing() -> AsyncIterator[None]:
    yield


def forever(loop: LoopPortal) -> Future[object]:
    return elsewhere(lambda: loop.wait(asyncio.sleep(NEVER)))


async def others() -> int:
    """How many tasks there are beside the one that holds the loop and this one."""
    return len(asyncio.all_tasks()) - 2


def test_garbage_is_closed_by_threads_that_it_needs_itself() -> None:
    collected = threading.Event()

    @asynccontextmanager
    async def needs_another() -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(collected.wait)

    def collect() -> None:
        gc.collect()
        collected.set()

    thread = LoopThread(needs_another)
    thread.itself = thread  # type: ignore[attr-defined]
    del thread
    elsewhere(collect).result(PATIENCE)


@pytest.mark.parametrize("begun", [False, True])
def test_a_ctrl_c_as_it_begins_ends_it(monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    thread = LoopThread(nothing)
    begin = thread._begin

    def interrupted(work: Any) -> None:
        if begun:
            begin(work)
        raise KeyboardInterrupt

    before = thread.wait(others())
    with monkeypatch.context() as patched:
        patched.setattr(thread, "_begin", interrupted)
        with pytest.raises(KeyboardInterrupt):
            thread.wait(asyncio.sleep(NEVER))
    assert thread.wait(others()) == before
    thread.close()


def test_what_runs_when_the_loop_ends_is_told() -> None:
    thread = LoopThread(nothing)
    outcome = forever(thread)
    until_sync(lambda: thread.wait(others()) == 1)
    thread.close()
    with pytest.raises(kv.ContextClosed):
        outcome.result(PATIENCE)


def test_what_is_asked_for_while_it_closes_is_told() -> None:
    leaving, asked = threading.Event(), threading.Event()

    @asynccontextmanager
    async def stands_still_at_its_end() -> AsyncIterator[None]:
        yield
        leaving.set()
        asked.wait(PATIENCE)  # whatever is asked for meanwhile waits in the loop's queue

    thread = LoopThread(stands_still_at_its_end)
    closing = elsewhere(thread.close)
    assert leaving.wait(PATIENCE)
    queued = len(thread._loop._ready)  # type: ignore[attr-defined]
    outcomes = [forever(thread) for _ in range(3)]
    until_sync(lambda: len(thread._loop._ready) == queued + 3)  # type: ignore[attr-defined]
    asked.set()
    for outcome in outcomes:
        with pytest.raises(kv.ContextClosed):
            outcome.result(PATIENCE)
    closing.result(PATIENCE)


def test_what_is_asked_for_while_the_loop_winds_down_is_told() -> None:
    thread, release = LoopThread(nothing), threading.Event()

    async def occupy() -> None:
        asyncio.get_running_loop().run_in_executor(None, release.wait)

    thread.wait(occupy())
    closing = elsewhere(thread.close)  # waits for the executor's thread
    try:
        until_sync(lambda: not thread._life.gate.is_open)
        with pytest.raises(kv.ContextClosed):
            forever(thread).result(PATIENCE)
    finally:
        release.set()
    closing.result(PATIENCE)
    with pytest.raises(kv.ContextClosed):
        thread.wait(asyncio.sleep(0))


def test_a_loop_of_another_that_ends_is_noticed() -> None:
    loop, never = asyncio.new_event_loop(), asyncio.sleep(0)
    outcome = elsewhere(lambda: LoopPortal(loop).wait(never))  # the loop does not run
    until_sync(lambda: loop._ready)  # type: ignore[attr-defined]
    loop.close()
    with pytest.raises(kv.ContextClosed):
        outcome.result(PATIENCE)
    never.close()


def test_a_coroutine_that_is_cancelled_by_itself_is_no_end_of_the_loop() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    thread = LoopThread(nothing)
    outcome = elsewhere(lambda: thread.wait(cancelled()))
    until_sync(outcome.done)
    assert type(outcome.exception()).__name__ == "CancelledError"
    thread.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_is_told_that_the_loop_is_not_its_own() -> None:
    thread = LoopThread(nothing)
    child = os.fork()
    if child == 0:
        outcome = forever(thread)
        try:
            os._exit(0 if isinstance(outcome.exception(PATIENCE), kv.WrongEventLoop) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.close()
