"""Scores of each category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from .interval import wilson
from .run import CaseResult

COLUMNS = (
    "category",
    "right",
    "of",
    "share",
    "95%",
    "calls",
    "rescued",
    "tokens",
    "s/case",
    "stopped",
    "cut",
    "errors",
)
ALL = "all"


@dataclass(frozen=True, slots=True)
class Score:
    """Score of the results of one category.

    Attributes:
        category: its name, or "all".
        n: number of cases.
        right: number of right cases.
        low: lower end of Wilson's 95% interval of the share of right cases, 0 to 1.
        high: upper end of that interval.
        calls: number of calls.
        rescued: number of these in another syntax than the model's own.
        tokens: number of generated tokens.
        seconds: average seconds of a case, waiting for other cases included.
        stopped: number of cases that a limit ended.
        cut: number of these that are right, as what called nothing where nothing was to be called and never answered.
        errors: number of cases without a reply.
    """

    category: str
    n: int
    right: int
    low: float
    high: float
    calls: int
    rescued: int
    tokens: int
    seconds: float
    stopped: int
    cut: int
    errors: int

    def row(self) -> tuple[str, ...]:
        """Cells of the row under `COLUMNS`."""
        share = f"{100 * self.right / self.n:.0f}%" if self.n else ""
        interval = f"{100 * self.low:.0f}-{100 * self.high:.0f}%"
        counts = map(str, (self.calls, self.rescued, self.tokens))
        ends = map(str, (self.stopped, self.cut, self.errors))
        return (self.category, str(self.right), str(self.n), share, interval, *counts, f"{self.seconds:.1f}", *ends)


def scores(results: Sequence[CaseResult]) -> list[Score]:
    """Scores of each category, in the order of the results, and one of all."""
    categories = dict.fromkeys(result.case.category for result in results)
    by_category = [_score(name, [r for r in results if r.case.category == name]) for name in categories]
    return [*by_category, _score(ALL, results)]


def _score(category: str, results: Sequence[CaseResult]) -> Score:
    right = sum(result.verdict.right for result in results)
    low, high = wilson(right, len(results))
    outcomes = [result.outcome for result in results]
    return Score(
        category=category,
        n=len(results),
        right=right,
        low=low,
        high=high,
        calls=sum(len(outcome.calls) for outcome in outcomes),
        rescued=sum(call.rescued is not None for outcome in outcomes for call in outcome.calls),
        tokens=sum(outcome.tokens for outcome in outcomes),
        seconds=fmean(outcome.seconds for outcome in outcomes) if outcomes else 0.0,
        stopped=sum(outcome.stopped is not None for outcome in outcomes),
        cut=sum(result.verdict.right and result.outcome.stopped is not None for result in results),
        errors=sum(outcome.error is not None for outcome in outcomes),
    )
