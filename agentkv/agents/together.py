"""Task groups that raise what went wrong itself."""

from __future__ import annotations

from types import TracebackType

import anyio
from anyio.abc import TaskGroup


class Together:
    """A task group that raises its first failure itself, not in a group; those that end the program come first."""

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
        raise next((failure for failure in found if not isinstance(failure, Exception)), found[0])
