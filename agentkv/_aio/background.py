"""Tasks of no task group, for work that outlives the call that starts it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from .host import current_event_loop


class BackgroundTasks:
    """Tasks that run until they end by themselves or are cancelled by `cancel`, even where nobody refers to them.

    What they run must not raise, as nobody would hear of it.
    """

    def __init__(self) -> None:
        self._ends: dict[anyio.CancelScope, anyio.Event] = {}
        self._tasks: dict[anyio.CancelScope, object] = {}  # asyncio itself has weak references alone

    def start(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        """Starts a task on the running event loop."""
        scope, ended = anyio.CancelScope(), anyio.Event()
        self._ends[scope] = ended

        async def run() -> None:
            try:
                with scope:
                    await work()
            finally:
                del self._ends[scope]
                self._tasks.pop(scope, None)
                ended.set()

        self._tasks[scope] = current_event_loop().spawn(run, name)

    def cancel(self) -> list[anyio.Event]:
        """Cancels all tasks. Returns the events of their ends."""
        for scope in self._ends:
            scope.cancel()
        return list(self._ends.values())
