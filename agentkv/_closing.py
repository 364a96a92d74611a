"""The end of a branch, for those who wait for it."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._commands import Awaited
    from ._loop import StepLoop


class Closing:
    """What `Branch.close` returns. The branch is closed already; awaiting this waits until its cells are free."""

    __slots__ = ("_loop", "_released")

    def __init__(self, loop: StepLoop, released: Awaited[None] | None) -> None:
        self._loop = loop
        self._released = released

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        if self._released is not None:
            self._loop.check_here()
            await self._loop.until(self._released.settled)
