"""Pins of cells that are read or written between forwards, as a context manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from .commands import Awaited
    from .loop import StepLoop


class HasPin(Protocol):
    """A pin, or an object with the id of one."""

    @property
    def id(self) -> int:
        """Id of the pin."""


H = TypeVar("H", bound=HasPin)


class PinnedCells(Generic[H]):
    """`async with` the pin that a command makes; it is released however the block ends.

    A pin takes one of the engine's spare sequences. If all are taken, entering waits until one is free; branches are
    never refused for it.
    """

    def __init__(self, loop: StepLoop, command: Awaited[H]) -> None:
        self._loop = loop
        self._command = command

    async def __aenter__(self) -> H:
        await self._loop.pins.acquire()
        try:
            return await self._loop.run(self._command)
        except BaseException:
            self._loop.pins.release()
            raise

    async def __aexit__(self, *how: object) -> None:
        self._loop.unpin(self._command.result().id)
        self._loop.pins.release()
