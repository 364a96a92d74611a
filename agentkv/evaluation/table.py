"""What the results of each category come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from .interval import wilson
from .run import Result

COLUMNS = ("category", "right", "of", "share", "95%", "calls", "rescued", "tokens", "s/case", "stopped", "errors")
ALL = "all"


@dataclass(frozen=True, slots=True)
class Score:
    """What the results of a category come to.

    Attributes:
        category: its name, or "all".
        n: cases.
        right: of these, those that were.
        low: lower end of the 95% interval of the share, by Wilson; 0 to 1.
        high: upper end.
        calls: that were made.
        rescued: of these, those that were written in another form than the model's own.
        tokens: that were generated.
        seconds: that a case took on average, waiting for others included.
        stopped: cases that ended at a limit.
        errors: cases without a reply.
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
    errors: int

    def row(self) -> tuple[str, ...]:
        """Under `COLUMNS`."""
        share = f"{100 * self.right / self.n:.0f}%" if self.n else ""
        interval = f"{100 * self.low:.0f}-{100 * self.high:.0f}%"
        counts = map(str, (self.calls, self.rescued, self.tokens))
        ends = map(str, (self.stopped, self.errors))
        return (self.category, str(self.right), str(self.n), share, interval, *counts, f"{self.seconds:.1f}", *ends)


def scores(results: Sequence[Result]) -> list[Score]:
    """One for each category, in the order of the results, and one for all."""
    categories = dict.fromkeys(result.case.category for result in results)
    by_category = [_score(name, [r for r in results if r.case.category == name]) for name in categories]
    return [*by_category, _score(ALL, results)]


def _score(category: str, results: Sequence[Result]) -> Score:
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
        rescued=sum(call.rescued for outcome in outcomes for call in outcome.calls),
        tokens=sum(outcome.tokens for outcome in outcomes),
        seconds=fmean(outcome.seconds for outcome in outcomes) if outcomes else 0.0,
        stopped=sum(outcome.stopped is not None for outcome in outcomes),
        errors=sum(outcome.error is not None for outcome in outcomes),
    )
