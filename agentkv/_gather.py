"""Awaiting several things at once, with one failure."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from ._errors import InvalidInput
from ._shown import shown

T = TypeVar("T")


async def gather(*awaitables: Awaitable[T]) -> list[T]:
    """Awaits all at once and returns their results in order.

    The first failure cancels the rest, waits until they are settled, and is raised itself (not in a group).

    Raises:
        InvalidInput: something that cannot be awaited, or a coroutine that was awaited before; then nothing is begun.
    """
    try:
        _check(awaitables)
    except InvalidInput:
        for awaitable in awaitables:
            if inspect.iscoroutine(awaitable):
                awaitable.close()
        raise
    results: list[Any] = [None] * len(awaitables)
    failures: list[Exception] = []

    async def run(index: int, awaitable: Awaitable[T]) -> None:
        try:
            results[index] = await uncancelled(awaitable, f"awaitable {index}")
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


async def uncancelled(awaitable: Awaitable[T], what: str) -> T:
    """What it comes to. Raises InvalidInput where it ends as cancelled and nobody cancelled it: as something does that
    awaits a task which somebody else cancelled. It would end the task that awaits it in silence. And for what cannot be
    awaited."""
    if not inspect.isawaitable(awaitable):
        raise InvalidInput(f"{what} returned {shown(awaitable)}, but it must be an async function")
    try:
        return await awaitable
    except anyio.get_cancelled_exc_class() as error:
        await checkpoint_if_cancelled()
        raise InvalidInput(
            f"{what} raised {type(error).__name__}, but nobody cancelled it; catch that where it awaits something that "
            "is cancelled"
        ) from error


def _check(awaitables: Sequence[object]) -> None:
    for index, awaitable in enumerate(awaitables):
        if not inspect.isawaitable(awaitable):
            advice = "; unpack the list: gather(*awaitables)" if isinstance(awaitable, list | tuple) else ""
            raise InvalidInput(f"awaitable {index} is {shown(awaitable)}, which cannot be awaited{advice}")
        if inspect.iscoroutine(awaitable) and (
            inspect.getcoroutinestate(awaitable) != inspect.CORO_CREATED
            or any(awaitable is other for other in awaitables[:index])
        ):
            raise InvalidInput(f"awaitable {index} is {shown(awaitable)}, which is awaited already; call it again")
