"""A lock and a semaphore that are freed however their block ends.

anyio's are owned by tasks: a coroutine that is torn down (`close()`, an abandoned generator, an event loop that ends)
is in none, or in another, and leaves them locked for good.
"""

from __future__ import annotations

from collections import deque

import anyio


class Semaphore:
    """Lets at most `value` `async with` blocks in at a time, first come first served. It has no owner: any task may
    release it.

    Attributes:
        value: number of free places.
    """

    def __init__(self, value: int) -> None:
        self.value = value
        self._waiting: deque[anyio.Event] = deque()

    async def acquire(self) -> None:
        """Takes a place, waiting until one is free; does not suspend if one is. A wait that is cancelled or torn down
        takes none."""
        if self.value:
            self.value -= 1
            return
        turn = anyio.Event()
        self._waiting.append(turn)
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self.release()
            else:
                self._waiting.remove(turn)
            raise

    def release(self) -> None:
        """Frees a place, or hands it to the longest waiter."""
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self.value += 1

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *how: object) -> None:
        self.release()


class Lock(Semaphore):
    """A semaphore with one place."""

    def __init__(self) -> None:
        super().__init__(1)
