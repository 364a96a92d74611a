"""A record of recent steps: how many branches and rows each forward merged."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._engine import StepReport

MAX_STEPS = 4096  # steps remembered; older ones are dropped


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of the step loop; frozen.

    Attributes:
        branches: branches that had rows in it.
        decode_rows: tokens that generations fed: one each, and the draft tokens to verify.
        prefill_rows: tokens of prompts and `extend`.
        forwards: forwards that it took; 1 unless it exceeded the program's bounds or was retried.
    """

    branches: int
    decode_rows: int
    prefill_rows: int
    forwards: int


class StepTrace:
    """The last steps; the thread of the step loop appends, anyone reads."""

    def __init__(self) -> None:
        self._rows: deque[tuple[int, int, int, int]] = deque(maxlen=MAX_STEPS)

    def add(self, report: StepReport) -> None:
        """Remembers a step that ran a forward."""
        if report.forwards:
            self._rows.append((report.branches, report.decode_rows, report.prefill_rows, report.forwards))

    def records(self) -> list[StepRecord]:
        """Oldest first."""
        return [StepRecord(*row) for row in self._rows.copy()]
