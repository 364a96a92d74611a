"""Shared parts of all patterns: concurrent attempts on forks of a trunk, each of which may fail by itself.

Arguments are checked before anything is forked, and branches that a pattern does not return are closed.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio

from .._aio.tasks import uncancelled
from .._context.branch import Branch
from .._context.context import Context
from .._types.checks import checked_count
from .._types.errors import InvalidInput
from .._types.show import preview

MOST = 2**31 - 1


def check(trunk: object, timeout: object = None, *, counts: dict[str, int] | None = None, **functions: object) -> None:
    """Raises InvalidInput for a trunk that is no Branch, an invalid timeout or count, or a function not callable."""
    if not isinstance(trunk, Branch):
        raise InvalidInput(f"trunk is {preview(trunk)}, but it must be a Branch")
    check_timeout(timeout)
    for name, count in (counts or {}).items():
        checked_count(count, name, 1, MOST)
    check_functions(**functions)


def check_timeout(timeout: object) -> None:
    """Raises InvalidInput for what is no number of seconds above 0, nor None."""
    if timeout is not None and not (
        isinstance(timeout, int | float) and not isinstance(timeout, bool) and 0 < timeout <= sys.float_info.max
    ):
        raise InvalidInput(f"timeout is {preview(timeout)}, but it must be None or a number of seconds above 0")


def check_functions(**functions: object) -> None:
    """Raises InvalidInput for a function that is not callable."""
    for name, function in functions.items():
        if not callable(function):
            raise InvalidInput(f"{name} is {preview(function)}, but it must be a function")


class Grove:
    """A context manager that owns branches, and closes them at its end."""

    def __init__(self) -> None:
        self._branches: list[Branch] = []

    async def __aenter__(self) -> Grove:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.prune()

    @property
    def contexts(self) -> set[Context]:
        """What it has branches of."""
        return {branch.context for branch in self._branches}

    def __contains__(self, branch: Branch) -> bool:
        return branch in self._branches

    def add(self, branch: Branch) -> Branch:
        """Takes ownership of a branch, and returns it."""
        self._branches.append(branch)
        return branch

    def take(self, branch: Branch) -> Branch:
        """Gives ownership of a branch to the caller, and returns it."""
        self._branches.remove(branch)
        return branch

    def prune(self, kept: Iterable[Branch] = ()) -> None:
        """Closes all but these; their cells are free before the next forward."""
        living = list(kept)
        for branch in self._branches:
            if branch not in living:
                branch.close()
        self._branches = living


T = TypeVar("T")
V = TypeVar("V")

Attempt = Callable[[Branch], Awaitable[T]]
Score = Callable[[T], float | Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Winner(Generic[T]):
    """Result of a pattern.

    Attributes:
        branch: a fork of the trunk with the winner's history; yours to adopt or to close.
        result: return value of the winning attempt.
        score: score of the attempt; each pattern documents its meaning.
    """

    branch: Branch
    result: T
    score: float


@asynccontextmanager
async def forks(trunk: Branch, n: int) -> AsyncIterator[list[Branch]]:
    """Makes forks of a trunk, which are closed when the block raises or is cancelled."""
    branches = await trunk.fork(n)
    try:
        yield branches
    except BaseException:
        close(branches)
        raise


def close(branches: Sequence[Branch]) -> None:
    """Closes branches; their cells are free before the next forward."""
    for branch in branches:
        branch.close()


async def attempt_each(
    branches: Sequence[Branch],
    attempt: Attempt[T],
    arrived: Callable[[int, T], Awaitable[bool]],
    timeout: float | None,
) -> list[Exception]:
    """Runs the attempt on every branch concurrently, and passes each result to `arrived` as it comes.

    Where an attempt fails, is not done after `timeout` seconds, or `arrived` raises, its branch is closed and its error
    is among those returned. Once `arrived` returns True, the other attempts are cancelled.
    """
    errors: list[Exception] = []

    async def run(index: int, branch: Branch) -> None:
        try:
            with anyio.fail_after(timeout):
                over = await arrived(index, await uncancelled(attempt(branch), "an attempt"))
        except Exception as error:
            branch.close()
            errors.append(error)
        else:
            if over:
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for index, branch in enumerate(branches):
            group.start_soon(run, index, branch)
    return errors


def checked(winner: V | None, errors: list[Exception]) -> V:
    """The winner. Raises an ExceptionGroup of the errors where there is none."""
    if winner is None:
        raise ExceptionGroup("every candidate failed", errors)
    return winner


async def scored(score: Score[T], result: T) -> float:
    """Scores a result. Raises InvalidInput for a score that is no number, or nan."""
    value = score(result)
    value = await uncancelled(value, "a score") if inspect.isawaitable(value) else value
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"a score is {preview(value)}, but it must be a number") from None
    if number != number:
        raise InvalidInput("a score is not a number (nan), so it cannot be compared; return a float")
    return number


def output_of(result: object) -> object:
    """The `output` of a run or a generation; anything else unchanged."""
    return getattr(result, "output", result)
