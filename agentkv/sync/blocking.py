"""Coroutine methods as methods that block, with the same parameters."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from .._aio.loop_thread import LoopPortal

P = ParamSpec("P")
R = TypeVar("R")


class Blocking(Protocol):
    """An object with blocking verbs."""

    _loop: LoopPortal

    @property
    def awaited(self) -> Any:
        """The object with the same verbs as coroutines."""


class BlockingVerb(Generic[P, R]):
    """Runs a coroutine method of `awaited` on its event loop, and waits: `extend = BlockingVerb(Branch.extend)`."""

    def __init__(self, verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> None:
        self._verb = verb
        update_wrapper(self, verb)  # type: ignore[arg-type]

    def __get__(self, of: Blocking | None, owner: type) -> Callable[P, R]:
        if of is None:
            return self  # type: ignore[return-value]

        def blocking(*args: P.args, **kwargs: P.kwargs) -> R:
            return of._loop.wait(self._verb(of.awaited, *args, **kwargs))

        return update_wrapper(blocking, self._verb)


def on_loop(loop: LoopPortal, work: Callable[[], R]) -> R:
    """Runs plain code on the event loop's thread, and returns its result."""

    async def run() -> R:
        return work()

    return loop.wait(run())
