"""History of recent steps: number of branches and rows of each forward, and its times."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .interface import StepReport

MAX_STEPS = 4096  # steps remembered; older ones are dropped


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of the step loop; frozen.

    Attributes:
        branches: branches that had rows in it.
        decode_rows: tokens that generations fed: one each, and the draft tokens to verify.
        prefill_rows: tokens of prompts and `extend`.
        forwards: number of forwards; 1 unless it exceeded the program's bounds or was retried.
        began: start on the clock of `time.perf_counter`, in seconds.
        seconds: duration, in seconds.
        forward_seconds: of these, inside the model's program.
        draft_seconds: of these, inside drafters.
    """

    branches: int
    decode_rows: int
    prefill_rows: int
    forwards: int
    began: float
    seconds: float
    forward_seconds: float
    draft_seconds: float


class StepHistory:
    """The last steps; the step loop's thread appends, any thread reads."""

    def __init__(self) -> None:
        self._rows: deque[tuple[int, int, int, int, float, float, float, float]] = deque(maxlen=MAX_STEPS)

    def add(self, report: StepReport) -> None:
        """Adds a step if it ran a forward."""
        if report.forwards:
            rows = (report.branches, report.decode_rows, report.prefill_rows, report.forwards)
            seconds = report.seconds
            times = (perf_counter() - seconds, seconds, report.forward_seconds, report.draft_seconds)
            self._rows.append(rows + times)

    def records(self) -> list[StepRecord]:
        """The steps, oldest first."""
        return [StepRecord(*row) for row in self._rows.copy()]
