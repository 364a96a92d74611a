"""Self-consistency: several attempts, of which the answer that most of them reach wins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._context.branch import Branch
from .._types.errors import LimitReached, OutputIncomplete
from .._types.log import log
from .._types.results import Generation
from ._shared import Attempt, T, Winner, attempt_each, check, checked, close, forks, output_of

_ENDED = ("eos", "stop")


async def vote(
    trunk: Branch,
    n: int,
    attempt: Attempt[T],
    *,
    key: Callable[[T], Any] = output_of,
    timeout: float | None = None,
) -> Winner[T]:
    """Runs `n` attempts, and returns one whose answer most of them agree on; the trunk stays as it is.

    Wang et al. 2022, "Self-Consistency Improves Chain of Thought Reasoning". Typed outputs make good ballots: they are
    equal where texts differ in a blank. The score is the winner's share of the votes cast. A generation that was cut
    has no answer and no vote; the log has their number.

    Args:
        trunk: the branch that every attempt begins with.
        n: number of attempts.
        attempt: called with a fork; give it a sampling temperature, or all vote alike.
        key: returns the value to compare by ==; by default the output of a run or a generation, else the result.
        timeout: seconds after which an attempt that is not done has no vote; None for no limit.

    Raises:
        ExceptionGroup: every attempt failed; one that fails beside others has no vote.
    """
    check(trunk, timeout, counts={"n": n}, attempt=attempt, key=key)
    results: dict[int, T] = {}
    ballots: list[tuple[Any, list[int]]] = []  # an answer, and the attempts with it

    async with forks(trunk, n) as branches:

        async def arrived(index: int, result: T) -> bool:
            if isinstance(result, Generation) and result.finish_reason not in _ENDED:
                _ = result.output  # raises OutputIncomplete for an output that was cut
            answer = key(result)
            bool(answer == answer)  # one that cannot be compared has no vote, the first one neither
            same = next((voters for other, voters in ballots if other == answer), None)
            if same is None:
                ballots.append((answer, same := []))
            same.append(index)
            results[index] = result
            close([branches[other] for other in same if other != min(same)])
            return False

        errors = await attempt_each(branches, attempt, arrived, timeout)
        if cut := sum(isinstance(error, OutputIncomplete | LimitReached) for error in errors):
            log.warning("attempts that were cut have no vote", cut=cut, of=n)
        won = checked(max((voters for _, voters in ballots), key=lambda v: (len(v), -min(v)), default=None), errors)
        close([branch for branch in branches if branch is not branches[min(won)]])
        return Winner(branches[min(won)], results[min(won)], len(won) / len(results))
