"""Awaiting several things at once, with one failure."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def gather(*awaitables: Awaitable[T]) -> list[T]:
    """Awaits all at once and returns their results in order.

    The first failure cancels the rest, waits until they are settled, and is raised itself (not in a group).
    """
    results: list[Any] = [None] * len(awaitables)
    failures: list[Exception] = []

    async def run(index: int, awaitable: Awaitable[T]) -> None:
        try:
            results[index] = await awaitable
        except Exception as error:
            failures.append(error)
            group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            for index, awaitable in enumerate(awaitables):
                group.start_soon(run, index, awaitable)
    finally:
        for awaitable in awaitables:  # those that a failure kept from starting
            if inspect.iscoroutine(awaitable):
                awaitable.close()
    if failures:
        raise failures[0]
    return results
