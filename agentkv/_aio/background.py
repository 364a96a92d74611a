"""Tasks of no task group, for work that outlives the call that starts it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from .host import current_event_loop


class BackgroundTasks:
    """Tasks that run until they end by themselves or are told to by `end`, even where nobody refers to them.

    What they run must not raise, as nobody would hear of it.
    """

    def __init__(self) -> None:
        self._ends: dict[anyio.Event, Callable[[], None]] = {}
        self._tasks: dict[anyio.Event, object] = {}  # asyncio itself has weak references alone

    def start(self, work: Callable[[], Awaitable[None]], end: Callable[[], None], name: str) -> None:
        """Starts a task on the running event loop. `end` has it end soon."""
        ended = anyio.Event()
        self._ends[ended] = end

        async def run() -> None:
            try:
                await work()
            finally:
                del self._ends[ended]
                self._tasks.pop(ended, None)
                ended.set()

        self._tasks[ended] = current_event_loop().spawn(run, name)

    def end(self) -> list[anyio.Event]:
        """Has all tasks end. Returns the events of their ends."""
        for end in list(self._ends.values()):
            end()
        return list(self._ends)
