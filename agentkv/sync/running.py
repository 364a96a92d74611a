"""A turn in progress, for code that does not await."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from .._aio.loop_thread import LoopPortal
from .blocking import on_loop

if TYPE_CHECKING:
    from .._types.run import Run
    from ..agents.control import Words
    from ..agents.events import Event
    from ..agents.running import RunningTurn
    from .branch import SyncBranch

Out_co = TypeVar("Out_co", covariant=True)


class SyncTurn(Generic[Out_co]):
    """A turn in progress, made by `SyncBranch.start`; otherwise like `RunningTurn`. Any thread may steer it.

    Attributes:
        awaited: the turn itself, for code on its event loop.
        branch: the branch of the turn.
    """

    def __init__(self, turn: RunningTurn[Out_co], branch: SyncBranch, loop: LoopPortal) -> None:
        """Private: use `SyncBranch.start`."""
        self.awaited = turn
        self.branch = branch
        self._loop = loop

    def wait(self) -> Run[Out_co]:
        """Waits for the end and returns the Run, or raises what ended the turn. A Ctrl-C ends the wait alone."""

        async def run() -> Run[Out_co]:
            return await self.awaited

        return self._loop.wait(run())

    def steer(self, text: str, at_once: bool = False) -> Words:
        """Has words enter the turn, as `RunningTurn.steer` does. Does not wait until they are on the branch."""
        return on_loop(self._loop, lambda: self.awaited.steer(text, at_once))

    def pause(self) -> None:
        """Pauses the turn, as `RunningTurn.pause` does."""
        on_loop(self._loop, self.awaited.pause)

    def resume(self) -> None:
        """Ends a pause."""
        on_loop(self._loop, self.awaited.resume)

    def stop(self, keep: bool | None = None) -> None:
        """Ends the turn as `RunningTurn.stop` does, and waits for its end."""

        async def stop() -> None:
            await self.awaited.stop(keep)

        self._loop.wait(stop())

    def fork(self, n: int) -> list[SyncTurn[Out_co]]:
        """Forks the turn in flight, as `RunningTurn.fork` does."""
        forks = self._loop.wait(self.awaited.fork(n))
        return [SyncTurn(fork, type(self.branch)(fork.branch, self._loop), self._loop) for fork in forks]

    def events(self) -> Iterator[Event]:
        """Reads the turn's events from now on; raises what ended the turn early."""
        events = on_loop(self._loop, self.awaited.events)

        def read() -> Iterator[Event]:
            while True:
                try:
                    yield self._loop.wait(events.__anext__())
                except StopAsyncIteration:
                    return

        return read()

    @property
    def done(self) -> bool:
        """Whether the turn has ended."""
        return self.awaited.done

    @property
    def paused(self) -> bool:
        """Whether the turn is paused."""
        return self.awaited.paused

    def __repr__(self) -> str:
        return repr(self.awaited)
