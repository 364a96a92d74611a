"""Runs coroutines on a thread of their own, for code without an event loop or on another one than the Context's."""

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
from typing import Any, Generic, TypeVar

from .._types.errors import AgentKVError, ContextClosed, WrongEventLoop
from .host import step_thread

T = TypeVar("T")
R = TypeVar("R")

LOOKS_S = 1.0  # how often a thread that waits looks whether a loop that is not ours has ended under it


class _Wait:
    """A wait for an event loop; lives as long as the waiting frame."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop


class _Waits(threading.local):
    """Waits of the calling thread, by weak reference: a Ctrl-C may leave a frame anywhere, `finally` included."""

    def __init__(self) -> None:
        self.all: weakref.WeakSet[_Wait] = weakref.WeakSet()


_waits = _Waits()


class LoopPortal:
    """Runs coroutines on an asyncio event loop for callers on other threads and loops."""

    def __init__(self, loop: asyncio.AbstractEventLoop, gate: LoopGate | None = None) -> None:
        self._loop = loop
        self._gate = gate or LoopGate()
        self._process = os.getpid()

    def is_current(self) -> bool:
        """Returns whether this loop runs the caller."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def blocks_on_caller(self) -> bool:
        """Returns whether the loop may be waiting for the calling thread, as when it collects garbage or handles a
        signal."""
        return _may_wait_for_caller(self._loop)

    def wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Runs a coroutine, blocks, and returns its result. A Ctrl-C cancels it and waits until it has cleaned up.

        Raises WrongEventLoop on the loop itself and on a thread that it waits for (`blocks_on_caller`), where this
        would deadlock, and in a forked process; ContextClosed once the loop has ended.
        """
        if self.is_current() or self.blocks_on_caller():
            coroutine.close()
            raise WrongEventLoop("a blocking call on the event loop that it waits for; await the coroutine instead")
        work = _PortalCall(self._loop, self._gate, coroutine)
        waits = _Wait(self._loop)
        try:  # a Ctrl-C may come before any line
            _waits.all.add(waits)
            self._begin(work)
            self._until_settled(work.outcome)
            return work.outcome.result()
        finally:
            if not work.outcome.done():
                work.cancel()
                self._until_settled(work.outcome)
            _waits.all.discard(waits)

    async def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Runs a coroutine and returns its result to any asyncio event loop; cancelling this cancels it. Raises as
        `wait`."""
        if self.is_current():
            return await coroutine
        work = _PortalCall(self._loop, self._gate, coroutine)
        try:
            self._begin(work)
            return await asyncio.shield(asyncio.wrap_future(work.outcome))
        finally:
            if not work.outcome.done():
                work.cancel()

    def _begin(self, work: _PortalCall[R]) -> None:
        try:
            self._check_process()
            work.submit()
        except AgentKVError:
            work.drop()
            raise

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise WrongEventLoop("this Context is open in the process that this one was forked off; open another here")

    def _until_settled(self, outcome: Future[Any]) -> None:
        while not concurrent.futures.wait([outcome], LOOKS_S).done:
            if self._loop.is_closed() and not outcome.done():
                raise _closed()


class LoopGate:
    """Entry to an event loop: a submitted call has begun by the time the loop ends, and none begins afterwards."""

    def __init__(self) -> None:
        self.is_open = True
        self._lock = threading.RLock()

    def submit(self, loop: asyncio.AbstractEventLoop, begin: Callable[[], None]) -> None:
        """Schedules `begin` on the loop. Raises ContextClosed."""
        with self._lock:
            if not self.is_open:
                raise _closed()
            try:
                loop.call_soon_threadsafe(begin)
            except RuntimeError:
                raise _closed() from None

    def close(self) -> None:
        """Closes the gate for good."""
        with self._lock:
            self.is_open = False


class LoopThread(LoopPortal, Generic[T]):
    """An event loop on its own thread with an open context manager, until `close` or the end of the process.

    Raises the exceptions of opening it.

    Attributes:
        value: the value of the context manager.
    """

    def __init__(self, open_it: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._life = _Life()
        opened: Future[T] = Future()
        self._life.start(open_it, opened)
        weakref.finalize(self, self._life.stop).atexit = False  # garbage is found by any thread: it waits for none
        try:
            super().__init__(self._life.begun.result(), self._life.gate)
            self.value = opened.result()
            atexit.register(self._life.end)  # before what opening registered: that ends what this still needs
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the context manager and ends the thread. Idempotent."""
        self._life.end()


class _PortalCall(Generic[R]):
    """A coroutine that an event loop runs for another thread.

    Attributes:
        outcome: its result, exception or cancellation.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, gate: LoopGate, coroutine: Coroutine[Any, Any, R]) -> None:
        self.outcome: Future[R] = Future()
        self._loop = loop
        self._gate = gate
        self._coroutine = coroutine
        self._task: asyncio.Task[R] | None = None

    def submit(self) -> None:
        """Schedules its start. Raises ContextClosed."""
        self._gate.submit(self._loop, self._begin)

    def cancel(self) -> None:
        """Cancels it, begun or not."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end)

    def drop(self) -> None:
        """Closes a coroutine that was never started, and cancels its outcome."""
        self._coroutine.close()
        self._cancelled()

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._settle)

    def _end(self) -> None:
        if self._task is None:  # what is let in begins before this
            self.drop()
        else:
            self._task.cancel()

    def _settle(self, task: asyncio.Task[R]) -> None:
        if task.cancelled() and not self._gate.is_open:  # the loop ends, and nobody here cancelled it
            self.outcome.set_exception(_closed())
        elif task.cancelled():
            self._cancelled()
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(_ending(error) or error)
        else:
            self.outcome.set_result(task.result())

    def _cancelled(self) -> None:
        self.outcome.cancel()
        self.outcome.set_running_or_notify_cancel()  # notifies waits on several futures


class _Life:
    """Lifetime of a thread's event loop; holds no reference to objects that may outlive it."""

    def __init__(self) -> None:
        self.begun: Future[asyncio.AbstractEventLoop] = Future()
        self.gate = LoopGate()
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self, open_it: Callable[[], AbstractAsyncContextManager[T]], opened: Future[T]) -> None:
        """Opens the context manager on a new thread."""

        def run() -> None:
            try:
                with asyncio.Runner() as runner:
                    holding = runner.get_loop().create_task(self._hold(open_it, opened))
                    while not holding.done():  # a tool that ends the program ends its caller's, not the loop
                        with suppress(SystemExit, KeyboardInterrupt):
                            runner.get_loop().run_until_complete(holding)
            finally:
                atexit.unregister(self.end)

        self._thread = threading.Thread(target=run, name="agentkv-loop", daemon=True)
        self._thread.start()

    async def _hold(self, open_it: Callable[[], AbstractAsyncContextManager[T]], opened: Future[T]) -> None:
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
            self.gate.close()  # what was let in is a task by the time that asyncio cancels those that are left

    def stop(self) -> None:
        """Requests the close; returns at once."""
        loop, stop = self.begun.result(), self._stop
        assert stop is not None
        with suppress(RuntimeError):  # it is closed: opening failed, or this was called before
            loop.call_soon_threadsafe(stop.set)

    def end(self) -> None:
        """Requests the close and joins the thread, except on that thread or one that its loop waits for."""
        self.stop()
        here = self._thread is threading.current_thread() or _may_wait_for_caller(self.begun.result())
        if self._thread is not None and not here:
            self._thread.join()


def _may_wait_for_caller(loop: asyncio.AbstractEventLoop) -> bool:
    """Returns whether the loop may wait for this thread: a step loop's thread, or one that waits for it and may hold a
    lock."""
    served = step_thread.serves
    return any(wait.loop is loop for wait in _waits.all) or (served is not None and served.native is loop)


def _ending(error: BaseException) -> BaseException | None:
    """The SystemExit or KeyboardInterrupt in an exception or its groups; None if there is none."""
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for each in error.exceptions if (found := _ending(each)) is not None), None)
    return None


def _closed() -> ContextClosed:
    return ContextClosed("the Context was left, and its event loop has ended; open it again")
