"""Coroutines for code that has no event loop, or another one than a Context: on a thread of their own."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, NamedTuple, TypeVar

from ._errors import ContextClosed, WrongEventLoop

T = TypeVar("T")
R = TypeVar("R")

LOOKS_S = 1.0  # how often a thread that waits looks whether a loop that is not ours has ended under it


class OnLoop:
    """An asyncio event loop, asked from anywhere to run coroutines."""

    def __init__(self, loop: asyncio.AbstractEventLoop, entrance: Entrance | None = None) -> None:
        self._loop = loop
        self._entrance = entrance or Entrance()
        self._process = os.getpid()

    def is_current(self) -> bool:
        """Does it run the caller?"""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """What it returns. A Ctrl-C cancels it, and waits until it has cleaned up.

        Raises WrongEventLoop on the loop itself, which would wait for ever, and in a process that was forked off its
        own; ContextClosed once the loop has ended.
        """
        if self.is_current():
            coroutine.close()
            raise WrongEventLoop("a blocking call on the event loop that it waits for; await the coroutine instead")
        started = self._start(coroutine)
        try:
            self._until_settled(started.outcome)
            return started.outcome.result()
        finally:
            if not started.outcome.done():
                started.cancel()
                self._until_settled(started.outcome)

    async def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """What it returns, for whatever asyncio event loop awaits it; cancelling this cancels it. Raises as `wait`."""
        if self.is_current():
            return await coroutine
        started = self._start(coroutine)
        try:
            return await asyncio.shield(asyncio.wrap_future(started.outcome))
        finally:
            if not started.outcome.done():
                started.cancel()

    def _start(self, coroutine: Coroutine[Any, Any, R]) -> _Started[R]:
        outcome: Future[R] = Future()
        tasks: list[asyncio.Task[R]] = []

        def begin() -> None:
            tasks.append(self._loop.create_task(coroutine))
            tasks[0].add_done_callback(lambda task: _settle(outcome, task, self._entrance))

        def cancel() -> None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())

        try:
            self._check_process()
            self._entrance.let_in(self._loop, begin)
        except BaseException:
            coroutine.close()
            raise
        return _Started(outcome, cancel)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise WrongEventLoop("this Context is open in the process that this one was forked off; open another here")

    def _until_settled(self, outcome: Future[Any]) -> None:
        while not concurrent.futures.wait([outcome], LOOKS_S).done:
            if self._loop.is_closed() and not outcome.done():
                raise _closed()


class Entrance:
    """To an event loop. Whatever was let in has been begun when the loop ends, and nothing is afterwards."""

    def __init__(self) -> None:
        self.is_open = True
        self._lock = threading.RLock()

    def let_in(self, loop: asyncio.AbstractEventLoop, begin: Callable[[], None]) -> None:
        """Has the loop call it. Raises ContextClosed."""
        with self._lock:
            if not self.is_open:
                raise _closed()
            try:
                loop.call_soon_threadsafe(begin)
            except RuntimeError:
                raise _closed() from None

    def shut(self) -> None:
        """For good."""
        with self._lock:
            self.is_open = False


class LoopThread(OnLoop, Generic[T]):
    """An event loop on a thread, with something open in it: until `close`, or the end of the process.

    Raises what opening it raises.

    Attributes:
        value: what is open.
    """

    def __init__(self, open_it: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        life = _Life()
        opened: Future[T] = Future()
        thread = threading.Thread(
            target=lambda: asyncio.run(life.hold(open_it, opened)), name="agentkv-loop", daemon=True
        )
        thread.start()
        self._finalize = weakref.finalize(self, life.end, thread)
        try:
            super().__init__(life.begun.result(), life.entrance)
            self.value = opened.result()
            atexit.register(self._finalize)  # before what opening registered: that ends what this still needs
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes what is open, and ends the thread. Does nothing the second time."""
        self._finalize()
        atexit.unregister(self._finalize)


class _Started(NamedTuple, Generic[R]):
    outcome: Future[R]
    cancel: Callable[[], None]


class _Life:
    """Of a thread's loop; knows nothing of who may outlive it."""

    def __init__(self) -> None:
        self.begun: Future[asyncio.AbstractEventLoop] = Future()
        self.entrance = Entrance()
        self._stop: asyncio.Event | None = None

    async def hold(self, open_it: Callable[[], AbstractAsyncContextManager[T]], opened: Future[T]) -> None:
        self._stop = asyncio.Event()
        self.begun.set_result(asyncio.get_running_loop())
        try:
            async with open_it() as value:
                opened.set_result(value)
                await self._stop.wait()
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)
        finally:
            self.entrance.shut()  # what was let in is a task by the time that asyncio cancels those that are left

    def end(self, thread: threading.Thread) -> None:
        loop, stop = self.begun.result(), self._stop
        assert stop is not None
        with suppress(RuntimeError):  # it is closed: opening failed
            loop.call_soon_threadsafe(stop.set)
        if thread is not threading.current_thread():
            thread.join()


def _settle(outcome: Future[R], task: asyncio.Task[R], entrance: Entrance) -> None:
    if task.cancelled() and not entrance.is_open:  # the loop ends, and nobody here cancelled it
        outcome.set_exception(_closed())
    elif task.cancelled():
        outcome.cancel()
        outcome.set_running_or_notify_cancel()  # whoever waits for several only then hears of it
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


def _closed() -> ContextClosed:
    return ContextClosed("the Context was left, and its event loop has ended; open it again")
