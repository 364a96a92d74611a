"""A race: the first good result wins, and the others stop."""

from __future__ import annotations

from collections.abc import Callable

from .._context.branch import Branch
from .._types.checks import truth_of
from .._types.errors import InvalidInput
from ._shared import Attempt, T, Winner, attempt_each, check, checked, close, forks


async def race(
    trunk: Branch,
    n: int,
    attempt: Attempt[T],
    *,
    good: Callable[[T], bool] = lambda _: True,
    timeout: float | None = None,
) -> Winner[T]:
    """Runs `n` attempts until one has a good result, and cancels the others; the trunk stays as it is.

    The score is 1.0, as nothing is compared.

    Args:
        trunk: the branch that every attempt begins with.
        n: number of attempts.
        attempt: called with a fork; for runners of several kinds, let it take the next one of a list.
        good: returns whether a result is good enough to win; by default every one is.
        timeout: seconds after which an attempt that is not done is dropped; None for no limit.

    Raises:
        ExceptionGroup: every attempt failed, or none was good.
    """
    check(trunk, timeout, counts={"n": n}, attempt=attempt, good=good)
    winner: Winner[T] | None = None

    async with forks(trunk, n) as branches:

        async def arrived(index: int, result: T) -> bool:
            nonlocal winner
            if not truth_of(good(result), "good"):
                raise InvalidInput(f"attempt {index} came to {result!r}, which is not good enough")
            if winner is None:
                winner = Winner(branches[index], result, 1.0)
            return True

        errors = await attempt_each(branches, attempt, arrived, timeout)
        first = checked(winner, errors)
        close([branch for branch in branches if branch is not first.branch])
        return first
