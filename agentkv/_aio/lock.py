"""A lock and a semaphore that are free again whatever ends the block that has them.

anyio's belong to tasks: a coroutine that is torn down (`close()`, an abandoned generator, an event loop that ends) is
in none, or in another, and leaves them locked for good.
"""

from __future__ import annotations

from collections import deque

import anyio


class Semaphore:
    """Lets so many `async with` blocks in at a time, in the order in which they came. Of no task: any may release.

    Attributes:
        value: how many more it lets in now.
    """

    def __init__(self, value: int) -> None:
        self.value = value
        self._waiting: deque[anyio.Event] = deque()

    async def acquire(self) -> None:
        """Takes a place, once there is one; does not suspend where there is. What ends the wait leaves none taken."""
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
        """Gives a place back: to who waits longest, if anybody does."""
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self.value += 1

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *how: object) -> None:
        self.release()


class Lock(Semaphore):
    """Lets one in at a time."""

    def __init__(self) -> None:
        super().__init__(1)
