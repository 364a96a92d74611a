"""Requests that must come to an end, whoever waits for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

T = TypeVar("T")

LAST_SECONDS = 5.0  # that a server has for an answer which nobody wants to wait for any more


def last_moments() -> anyio.CancelScope:
    """What is done in this block is done although the caller is cancelled, unless it takes longer than some seconds."""
    return anyio.move_on_after(LAST_SECONDS, shield=True)


async def settled(work: Callable[[], Awaitable[T]], drop: Callable[[T], Any] = lambda _: None) -> T:
    """What `work` returns. If the caller is cancelled, it may go on for some seconds, and what it comes to is dropped:
    a request that is cut off might have been done, and nobody would know of what it made."""
    scope, ended = anyio.CancelScope(shield=True), anyio.Event()
    results: list[T] = []
    failures: list[Exception] = []

    async def run() -> None:
        try:
            with scope:
                results.append(await work())
        except Exception as error:  # for the caller, and not in a group
            failures.append(error)
        ended.set()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            try:
                await ended.wait()
            finally:
                scope.deadline = anyio.current_time() + LAST_SECONDS
    except anyio.get_cancelled_exc_class():
        for result in results:
            drop(result)
        raise
    if failures:
        raise failures[0]
    return results[0]
