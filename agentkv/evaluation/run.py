"""Putting cases to a model, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .._aio.tasks import Together
from .cases import Case
from .judge import Verdict, judged
from .outcome import Outcome, Runner


class Result(NamedTuple):
    """A case, what came of it, and what that is worth."""

    case: Case
    outcome: Outcome
    verdict: Verdict


async def evaluate(
    cases: Sequence[Case], runner: Runner, parallel: int, done: Callable[[Result], None] = lambda result: None
) -> list[Result]:
    """Every case's result, in the order of the cases.

    Raises what `runner` raises.

    Args:
        cases: to ask.
        runner: what asks them.
        parallel: how many at a time; no case knows of another.
        done: called with each result as it comes.
    """
    results: dict[int, Result] = {}
    places = iter(range(len(cases)))

    async def ask() -> None:
        for place in places:
            outcome = await runner.answer(cases[place])
            results[place] = Result(cases[place], outcome, judged(cases[place], outcome))
            done(results[place])

    async with Together() as group:
        for _ in range(min(parallel, len(cases))):
            group.start_soon(ask)
    return [results[place] for place in range(len(cases))]
