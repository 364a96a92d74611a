"""Runs cases, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .._aio.tasks import FirstErrorGroup
from .cases import Case
from .judge import Verdict, judged
from .outcome import Outcome, Runner


class CaseResult(NamedTuple):
    """A case, its outcome, and the verdict."""

    case: Case
    outcome: Outcome
    verdict: Verdict


async def evaluate(
    cases: Sequence[Case], runner: Runner, parallel: int, done: Callable[[CaseResult], None] = lambda result: None
) -> list[CaseResult]:
    """Runs and judges all cases. Returns the results in the order of the cases. Raises as `runner` does.

    Args:
        cases: cases to run.
        runner: runs each case.
        parallel: number of cases at a time; cases are independent of each other.
        done: called with each result as it comes.
    """
    results: dict[int, CaseResult] = {}
    places = iter(range(len(cases)))

    async def ask() -> None:
        for place in places:
            outcome = await runner.answer(cases[place])
            results[place] = CaseResult(cases[place], outcome, judged(cases[place], outcome))
            done(results[place])

    async with FirstErrorGroup() as group:
        for _ in range(min(parallel, len(cases))):
            group.start_soon(ask)
    return [results[place] for place in range(len(cases))]
