"""Detects and interrupts strategies that do not return, for waits on the step loop's thread."""

from __future__ import annotations

import ctypes
import sys
import threading
from types import FrameType

from .worker import EngineWorker

LOOKS_BEFORE_GIVING_UP = 4
_CALLING = (EngineWorker.step.__code__, EngineWorker.settle.__code__)  # into the engine


class StrategyInterrupted(BaseException):
    """Raised inside a strategy that blocks the step loop while another task waits for it uninterruptibly."""


class StrategyWatchdog:
    """Watches the thread for one wait."""

    def __init__(self, thread: threading.Thread | None) -> None:
        self._thread = thread
        self._frame: FrameType | None = None
        self._looks = 0

    def interrupt(self) -> bool:
        """Checks once. From the second check that finds the same call of a strategy on, raises StrategyInterrupted
        inside it.

        That reaches Python code, not a blocking C function. Returns True once it has had no effect for a while.
        """
        frame = self._strategy_frame()
        if frame is None or frame is not self._frame:
            self._frame, self._looks = frame, 0
            return False
        self._looks += 1
        assert self._thread is not None
        ident = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(StrategyInterrupted))
        return self._looks >= LOOKS_BEFORE_GIVING_UP

    def _strategy_frame(self) -> FrameType | None:
        """Frame that the engine called during a step, if Python code of a strategy runs there now; else None."""
        if self._thread is None or self._thread.ident is None:
            return None
        above: FrameType | None = None
        frame = sys._current_frames().get(self._thread.ident)
        while frame is not None and frame.f_code not in _CALLING:
            above, frame = frame, frame.f_back
        if frame is None or above is None:
            return None
        runs_a_model = above.f_globals.get("__name__", "").startswith("agentkv_runtime.")  # torch's forward is Python
        return None if runs_a_model else above
