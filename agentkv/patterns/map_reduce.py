"""Map and reduce: a sub-agent for each item, and one that combines their results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from .._aio.lock import Semaphore
from .._aio.tasks import uncancelled
from .._context.branch import Branch
from .._types.checks import checked_items
from ._shared import T, Winner, check, checked, forks

Item = TypeVar("Item")
Part = TypeVar("Part")


async def map_reduce(
    trunk: Branch,
    items: Sequence[Item],
    work: Callable[[Branch, Item], Awaitable[Part]],
    reduce: Callable[[Branch, list[Part]], Awaitable[T]],
    *,
    at_once: int = 16,
    timeout: float | None = None,
) -> Winner[T]:
    """Works on every item on its own fork, then on all results on one more; the trunk stays as it is.

    The score is the share of the items that succeeded.

    Args:
        trunk: the branch that all forks begin with.
        items: the items to work on.
        work: called with a fork and an item; the fork is closed when it returns.
        reduce: called with a fork and the results, in the order of the items; the winner's branch is this fork.
        at_once: most items in work at the same time.
        timeout: seconds after which an item that is not done is dropped; None for no limit.

    Raises:
        ExceptionGroup: the work failed on every item; an item that fails beside others is left out.
    """
    check(trunk, timeout, counts={"at_once": at_once}, work=work, reduce=reduce)
    items = checked_items(items, "items")
    results: dict[int, Part] = {}
    errors: list[Exception] = []
    limiter = Semaphore(at_once)

    async def run(index: int, item: Item) -> None:
        async with limiter:
            try:
                with anyio.fail_after(timeout):
                    async with await trunk.fork() as branch:
                        results[index] = await uncancelled(work(branch, item), "work")
            except Exception as error:
                errors.append(error)

    async with anyio.create_task_group() as group:
        for index, item in enumerate(items):
            group.start_soon(run, index, item)
    checked(results or (None if items else results), errors)
    async with forks(trunk, 1) as (branch,):
        result = await uncancelled(reduce(branch, [results[index] for index in sorted(results)]), "reduce")
        return Winner(branch, result, len(results) / len(items) if items else 1.0)
