"""Work that would hold up the event loop, done in a thread to its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import anyio

if TYPE_CHECKING:
    from ._loop import StepLoop

T = TypeVar("T")


async def in_thread(loop: StepLoop, work: Callable[[], T]) -> T:
    """The result of `work`, which runs in a thread. A cancelled wait waits all the same: what the thread has in hand,
    such as half a file, is never left to it."""
    done = anyio.Event()
    outcome: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        nonlocal work
        try:
            outcome.append(work())
        except BaseException as error:
            failures.append(error)
        del work  # the thread may end long after the wait: nothing that it kept outlives the call
        loop.post(done.set)

    threading.Thread(target=run, name="agentkv-file", daemon=True).start()
    await loop.until(done)
    if failures:
        raise failures.pop()
    return outcome.pop()
