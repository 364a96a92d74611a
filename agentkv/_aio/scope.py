"""Timeouts that end well in coroutines that are torn down."""

from __future__ import annotations

import math
from contextlib import suppress
from types import TracebackType

import anyio


class move_on_after:
    """anyio's `move_on_after`, safe around code that is torn down: an anyio scope that is left from another task than
    its own raises, which hides the GeneratorExit, stays open, and cancels the task that is gone again and again after
    its deadline."""

    def __init__(self, seconds: float, *, shield: bool = False) -> None:
        self._scope = anyio.CancelScope(deadline=anyio.current_time() + seconds, shield=shield)
        self._left: float | None = None  # seconds, while the clock stands

    def cancel(self) -> None:
        """Cancels what the scope holds, or will hold."""
        self._scope.cancel()

    def stop_clock(self) -> None:
        """Stops the time that is left, until `start_clock`."""
        if self._left is None:
            self._left = self._scope.deadline - anyio.current_time()
            self._scope.deadline = math.inf

    def start_clock(self) -> None:
        """Goes on with the time that was left at `stop_clock`."""
        if self._left is not None:
            self._scope.deadline = anyio.current_time() + self._left
            self._left = None

    def __enter__(self) -> None:
        self._scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if kind is not GeneratorExit:
            is_ours = self._scope.__exit__(kind, error, traceback)
            if is_ours:
                drop_frames(error)
            return is_ours
        self._scope.deadline = math.inf
        with suppress(RuntimeError):  # it may be the task's own
            self._scope.__exit__(kind, error, traceback)
        return False


def drop_frames(error: BaseException | None) -> None:
    """Drops the frames of a cancellation. On asyncio anyio's own refer to it, in a cycle: what the cancelled ones refer
    to would stay until Python's collector comes by."""
    while isinstance(error, anyio.get_cancelled_exc_class()):
        error.__traceback__ = None
        error = error.__context__  # which stays: anyio tells its own cancellations by it
