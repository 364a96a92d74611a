"""Plain functions in worker threads, under a limiter whose slots are held until the thread returns."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TypeVar, cast

import anyio
from anyio import to_thread

from .host import EventLoopHandle, current_event_loop
from .lock import Semaphore

T = TypeVar("T")

MOST_THREADS = 40  # of one Context's tools at once


class ToolThreads:
    """The worker threads of one Context's tools. Made and used on one event loop.

    anyio frees a slot as soon as its task is cancelled, though the abandoned thread goes on. Here a slot is held until
    the thread returns, so that functions which never do cannot pile up.
    """

    def __init__(self, most: int = MOST_THREADS) -> None:
        self._most = most
        self._slots = Semaphore(most)
        self._unlimited = anyio.CapacityLimiter(math.inf)  # the slots above are the limit
        self._event_loop = current_event_loop()

    @property
    def busy(self) -> int:
        """Threads that have not returned, abandoned ones included."""
        return self._most - self._slots.value

    async def acquire(self) -> ThreadSlot:
        """Waits for a free slot for one thread; `run` is to follow at once."""
        await self._slots.acquire()
        return ThreadSlot(self._slots, self._unlimited, self._event_loop)


class ThreadSlot:
    """A slot, occupied until its thread returns. Either the thread runs the function or its cancelled task gives it up,
    whichever claims it first.

    Attributes:
        skipped: whether the function was not called and never will be.
    """

    def __init__(self, slots: Semaphore, unlimited: anyio.CapacityLimiter, event_loop: EventLoopHandle) -> None:
        self._slots = slots
        self._unlimited = unlimited
        self._event_loop = event_loop
        self._claimed = threading.Lock()
        self.skipped = False

    async def run(self, function: Callable[[], T]) -> T:
        """Runs `function` in a thread and returns its result. A cancelled task does not wait for it."""

        def work() -> T | None:
            if not self._claim():
                return None  # its task was cancelled before the thread came to it
            try:
                return function()
            finally:
                self._event_loop.call_soon_threadsafe(self._free)

        try:
            return cast(T, await to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._unlimited))
        finally:
            if self._claim():
                self.skipped = True
                self._free()

    def _claim(self) -> bool:
        return self._claimed.acquire(blocking=False)

    def _free(self) -> None:
        self._slots.release()
