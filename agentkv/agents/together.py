"""Task groups that raise what went wrong itself."""

from __future__ import annotations

import asyncio
from types import TracebackType

import anyio
from anyio.abc import TaskGroup


class Together:
    """A task group that raises its first failure itself, not in a group; those that end the program come first.

    On asyncio one that another task ends the program with stays in its group.
    """

    def __init__(self) -> None:
        self._group = anyio.create_task_group()

    async def __aenter__(self) -> TaskGroup:
        return await self._group.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            return await self._group.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as failures:
            found = failures.exceptions
            first = next((failure for failure in found if not isinstance(failure, Exception)), found[0])
            if isinstance(first, KeyboardInterrupt | SystemExit) and first is not error and _on_asyncio():
                raise  # it has ended the loop from its own task; a second time would leave no time to clean up
        raise first


def _on_asyncio() -> bool:
    return anyio.get_cancelled_exc_class() is asyncio.CancelledError
