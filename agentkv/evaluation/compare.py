"""Comparison of two runs of the same cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path

from pydantic import BaseModel, ValidationError

from .._types.errors import InvalidInput

COLUMNS = ("category", "cases", "first", "second", "first alone", "second alone", "by chance")


class Judged(BaseModel):
    """Fields of a case in a report that a comparison needs."""

    id: str
    category: str
    right: bool


class JudgedReport(BaseModel):
    """Fields of a report that a comparison needs."""

    cases: list[Judged]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Counts of the cases of one category that both runs have.

    Attributes:
        category: its name, or "all".
        n: number of cases.
        both: cases right in both runs.
        first: cases right in the first run only.
        second: cases right in the second run only.
    """

    category: str
    n: int
    both: int
    first: int
    second: int

    @property
    def chance(self) -> float:
        """Probability that equal runs differ at least as much, 0 to 1: McNemar's test, exact and two-sided."""
        differ, fewer = self.first + self.second, min(self.first, self.second)
        return min(1.0, 2 * sum(comb(differ, k) for k in range(fewer + 1)) / (1 << differ))

    def row(self) -> tuple[str, ...]:
        """Cells of the row under `COLUMNS`."""
        right = (f"{self.both + self.first}", f"{self.both + self.second}")
        return (self.category, str(self.n), *right, str(self.first), str(self.second), f"{100 * self.chance:.1f}%")


def read_report(path: Path) -> Mapping[str, Judged]:
    """Reads a report's cases by category and id. Raises InvalidInput for a file that `--json` did not write, and
    OSError."""
    try:
        report = JudgedReport.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise InvalidInput(
            f"{path} is not what `agentkv eval tools --json` writes: {error.errors()[0]['msg']}"
        ) from error
    return {f"{case.category} {case.id}": case for case in report.cases}


def comparisons(first: Mapping[str, Judged], second: Mapping[str, Judged]) -> list[Comparison]:
    """Compares the shared cases: one comparison for each category, and one for all. Raises InvalidInput if none is
    shared."""
    pairs = [(case, second[key]) for key, case in first.items() if key in second]
    if not pairs:
        raise InvalidInput("the two runs have no case in common; ask both the same cases")
    categories = dict.fromkeys(case.category for case, _ in pairs)
    return [
        *(_comparison(name, [pair for pair in pairs if pair[0].category == name]) for name in categories),
        _comparison("all", pairs),
    ]


def _comparison(category: str, pairs: Sequence[tuple[Judged, Judged]]) -> Comparison:
    right = [(one.right, other.right) for one, other in pairs]
    return Comparison(
        category,
        n=len(pairs),
        both=right.count((True, True)),
        first=right.count((True, False)),
        second=right.count((False, True)),
    )
