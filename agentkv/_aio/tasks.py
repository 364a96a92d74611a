"""Tasks that run together and fail as one, and callbacks that may be plain or async."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from .._types.errors import InvalidInput
from .._types.show import preview
from .scope import drop_frames

T = TypeVar("T")
Args = TypeVarTuple("Args")


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
        del failures[1:]
        raise failures.pop()  # held here, its traceback would keep branches until Python's collector comes by
    return results


async def uncancelled(awaitable: Awaitable[T], what: str) -> T:
    """Awaits and returns the result. Raises InvalidInput for something that cannot be awaited, and for one that ends as
    cancelled though nobody cancelled the caller, as when it awaits a task that was cancelled elsewhere: that would end
    the awaiting task in silence."""
    if not inspect.isawaitable(awaitable):
        raise InvalidInput(f"{what} returned {preview(awaitable)}, but it must be an async function")
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
            raise InvalidInput(f"awaitable {index} is {preview(awaitable)}, which cannot be awaited{advice}")
        if inspect.iscoroutine(awaitable) and (
            inspect.getcoroutinestate(awaitable) != inspect.CORO_CREATED
            or any(awaitable is other for other in awaitables[:index])
        ):
            raise InvalidInput(f"awaitable {index} is {preview(awaitable)}, which is awaited already; call it again")


class FirstErrorGroup:
    """A task group that raises its first failure itself, not in a group; SystemExit and KeyboardInterrupt come first.

    On asyncio a SystemExit or KeyboardInterrupt of another task stays in its group. A task that is cancelled keeps
    nothing alive.
    """

    def __init__(self) -> None:
        self._group = anyio.create_task_group()

    async def __aenter__(self) -> FirstErrorGroup:
        await self._group.__aenter__()
        return self

    @property
    def cancel_scope(self) -> anyio.CancelScope:
        """The scope of all its tasks."""
        return self._group.cancel_scope

    def start_soon(self, work: Callable[[Unpack[Args]], Awaitable[Any]], *args: *Args) -> None:
        """Starts a task."""
        self._group.start_soon(_without_frames, work, *args)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            return await self._group.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as failures:
            found = failures.exceptions
            first = next((failure for failure in found if not isinstance(failure, Exception)), found[0])
            if isinstance(first, KeyboardInterrupt | SystemExit) and first is not error and _on_asyncio():
                raise  # it has ended the loop from its own task; a second time would leave no time to clean up
        try:
            raise first
        finally:
            del first, found, error  # held here, they would be in a cycle with the traceback


async def _without_frames(work: Callable[[Unpack[Args]], Awaitable[Any]], *args: *Args) -> None:
    try:
        await work(*args)
    except anyio.get_cancelled_exc_class() as error:
        drop_frames(error)
        del work, args  # this frame is one, too
        raise


def _on_asyncio() -> bool:
    return anyio.get_cancelled_exc_class() is asyncio.CancelledError


async def maybe_await(value: Awaitable[T] | T) -> T:
    """The value, awaited if it is awaitable."""
    return cast(T, await value if inspect.isawaitable(value) else value)
