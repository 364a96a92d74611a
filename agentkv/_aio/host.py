"""The event loop of a Context, as its step loop uses it: run a callback soon, from the loop or from a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol, cast

from anyio.lowlevel import current_token

if TYPE_CHECKING:
    import trio.lowlevel


class EventLoopHandle(Protocol):
    """An event loop of asyncio or trio."""

    @property
    def native(self) -> object:
        """The loop of asyncio, or the token of trio."""

    def is_current(self) -> bool:
        """Returns whether this loop runs the caller."""
        ...

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Runs `callback` on the next tick of the loop; called on the loop's own thread."""
        ...

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> bool:
        """Runs `callback` on the loop, from any thread; returns False when the loop is gone."""
        ...

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> object:
        """Starts a task of no task group, which must not raise; called on the loop's own thread. Returns the task,
        for the caller to keep."""
        ...


class _AsyncioHost:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.native = self._loop = loop

    def is_current(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> bool:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> object:
        return self._loop.create_task(work(), name=name)


class _TrioHost:
    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self.native = self._token = token

    def is_current(self) -> bool:
        import trio

        try:
            return trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:
            return False

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._token.run_sync_soon(callback)

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> bool:
        import trio

        try:
            self._token.run_sync_soon(callback)
        except (trio.RunFinishedError, OSError):  # the latter where trio was left by an exception of a signal's
            return False
        return True

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> object:
        import trio

        return trio.lowlevel.spawn_system_task(work, name=name, context=copy_context())


class StepThread(threading.local):
    """The calling thread's relation to a Context.

    Attributes:
        serves: the event loop that this thread's step loop serves, and may wait for; None on all other threads.
    """

    serves: EventLoopHandle | None = None


step_thread = StepThread()


def current_event_loop() -> EventLoopHandle:
    """Handle of the event loop that runs the caller. Raises RuntimeError outside of one."""
    native = current_token().native_token
    if isinstance(native, asyncio.AbstractEventLoop):
        return _AsyncioHost(native)
    return _TrioHost(cast("trio.lowlevel.TrioToken", native))
