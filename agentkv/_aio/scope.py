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

    def __enter__(self) -> None:
        self._scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if kind is not GeneratorExit:
            return self._scope.__exit__(kind, error, traceback)
        self._scope.deadline = math.inf
        with suppress(RuntimeError):  # it may be the task's own
            self._scope.__exit__(kind, error, traceback)
        return False
