"""Best of n: several attempts, of which the one with the highest score wins."""

from __future__ import annotations

from .._context.branch import Branch
from ._shared import Attempt, Score, T, Winner, attempt_each, check, checked, forks, scored


async def best_of(
    trunk: Branch, n: int, attempt: Attempt[T], *, score: Score[T], timeout: float | None = None
) -> Winner[T]:
    """Runs `n` attempts, each on its own fork, and returns the best; the trunk stays as it is.

    A loser's cells are freed as soon as a better attempt is known.

    Args:
        trunk: the branch that every attempt begins with.
        n: number of attempts.
        attempt: called with a fork; siblings that sample draw different tokens.
        score: called with the result of an attempt, a plain or an async function; the highest wins, on a tie the
            earlier fork.
        timeout: seconds after which an attempt that is not done is dropped; None for no limit.

    Raises:
        ExceptionGroup: every attempt failed; one that fails beside others is dropped.
    """
    check(trunk, timeout, counts={"n": n}, attempt=attempt, score=score)
    best: Winner[T] | None = None
    place = 0  # of the best one

    async with forks(trunk, n) as branches:

        async def arrived(index: int, result: T) -> bool:
            nonlocal best, place
            value = await scored(score, result)
            if best is not None and (best.score, -place) > (value, -index):
                branches[index].close()
                return False
            if best is not None:
                best.branch.close()
            best, place = Winner(branches[index], result, value), index
            return False

        errors = await attempt_each(branches, attempt, arrived, timeout)
        return checked(best, errors)
