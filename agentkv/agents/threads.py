"""Plain functions in worker threads, under a limiter whose slots are held until the thread returns."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

import anyio
from anyio import to_thread

from .._host import current_host

T = TypeVar("T")

MOST_THREADS = 40  # of one Context's tools at once


class ToolThreads:
    """The worker threads of one Context's tools. Made and used on one event loop.

    anyio frees a slot as soon as its task is cancelled, though the abandoned thread goes on. Here a slot is held until
    the thread returns, so that functions which never do cannot pile up.
    """

    def __init__(self, most: int = MOST_THREADS) -> None:
        self._slots = anyio.CapacityLimiter(most)
        self._unlimited = anyio.CapacityLimiter(math.inf)  # the slots above are the limit
        self._host = current_host()

    @property
    def busy(self) -> int:
        """Threads that have not returned, abandoned ones included."""
        return self._slots.borrowed_tokens

    async def run(self, function: Callable[[], T]) -> T:
        """Runs `function` in a thread. A cancelled task does not wait for it."""
        once = _Once()
        await self._slots.acquire_on_behalf_of(once)
        free = partial(self._slots.release_on_behalf_of, once)

        def work() -> T | None:
            if not once.claim():
                return None  # its task was cancelled before the thread came to it
            try:
                return function()
            finally:
                self._host.post(free)

        try:
            return cast(T, await to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._unlimited))
        finally:
            if once.claim():
                free()


class _Once:
    """A function that either its thread runs or its task gives up: whoever claims it first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def claim(self) -> bool:
        return self._lock.acquire(blocking=False)
