"""Self-consistency: several attempts, of which the answer that most of them reach wins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._branch import Branch
from ._attempts import Attempt, T, Winner, attempt_each, checked, close, forks, output_of
from ._checks import check


async def vote(
    trunk: Branch,
    n: int,
    attempt: Attempt[T],
    *,
    key: Callable[[T], Any] = output_of,
    timeout: float | None = None,
) -> Winner[T]:
    """The attempt whose answer most of `n` attempts agree on; the trunk stays as it is.

    Wang et al. 2022, "Self-Consistency Improves Chain of Thought Reasoning". Typed outputs make good ballots: they are
    equal where texts differ in a blank. The score is the winner's share of the votes that were cast.

    Args:
        trunk: what every attempt begins with.
        n: how many attempts.
        attempt: called with a fork; give it a sampling temperature, or all vote alike.
        key: what is compared with ==; left out, the output of a run or a generation, and anything else as it is.
        timeout: seconds after which an attempt that is not done has no vote; None for no limit.

    Raises:
        ExceptionGroup: every attempt failed; one that fails beside others has no vote.
    """
    check(trunk, timeout, attempt=attempt, key=key)
    votes: dict[int, tuple[Any, T]] = {}

    def agreeing(index: int) -> list[int]:
        return sorted(other for other, (answer, _) in votes.items() if answer == votes[index][0])

    async with forks(trunk, n) as branches:

        async def arrived(index: int, result: T) -> bool:
            votes[index] = key(result), result
            close([branches[other] for other in agreeing(index)[1:]])
            return False

        errors = await attempt_each(branches, attempt, arrived, timeout)
        won = checked(max(votes, key=lambda index: (len(agreeing(index)), -index), default=None), errors)
        close([branch for branch in branches if branch is not branches[won]])
        return Winner(branches[won], votes[won][1], len(agreeing(won)) / len(votes))
