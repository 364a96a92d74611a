"""Cells that are read or written between forwards, as a block of code that has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from .commands import Awaited
    from .loop import StepLoop


class Held(Protocol):
    """What the engine gave: a hold, or what has one."""

    @property
    def id(self) -> int:
        """Of the hold."""


H = TypeVar("H", bound=Held)


class CellHold(Generic[H]):
    """`async with` what a command holds, which is released however the block ends.

    A hold takes one of the sequences that the engine has beside those of branches. Where others have all of them, this
    waits until one ends; branches are never refused for it.
    """

    def __init__(self, loop: StepLoop, command: Awaited[H]) -> None:
        self._loop = loop
        self._command = command

    async def __aenter__(self) -> H:
        await self._loop.holds.acquire()
        try:
            return await self._loop.run(self._command)
        except BaseException:
            self._loop.holds.release()
            raise

    async def __aexit__(self, *how: object) -> None:
        self._loop.let_go(self._command.result().id)
        self._loop.holds.release()
