"""Admission control: which requests run, which wait, and which are refused."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

import anyio

from .._aio.lock import Semaphore
from .._context.model_pool import hold_no_model
from .http.errors import ApiError, busy

_waited: ContextVar[float] = ContextVar("_waited", default=0.0)  # seconds that this request waited for its model


def begin_request() -> None:
    """A new request begins in this task, which may have come from that of another one."""
    _waited.set(0.0)
    hold_no_model()


class Departures:
    """The requests of one model that are at work: those that lack room for a prompt wait for another one's end.

    Attributes:
        running: number of them.
        ended: number of those that have ended.
    """

    def __init__(self) -> None:
        self.running = 0
        self.ended = 0
        self._lacking = 0
        self._left = anyio.Event()

    @contextmanager
    def one(self) -> Iterator[None]:
        """One more request for the length of a block."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self.ended += 1
            self._left.set()
            self._left = anyio.Event()

    async def next(self) -> bool:
        """Waits until another request has ended. Returns False where none can: all others wait for the same."""
        if self.running - self._lacking <= 1:
            return False
        self._lacking += 1
        try:
            await self._left.wait()
        finally:
            self._lacking -= 1
        return True


class Admission:
    """Admits up to `most_running` requests at a time; up to `most_waiting` more wait, first come first served."""

    def __init__(self, most_running: int, most_waiting: int) -> None:
        self._places = Semaphore(most_running)
        self._most_waiting = most_waiting
        self._scopes: set[anyio.CancelScope] = set()  # of admitted requests
        self._scopes_of_waiting: set[anyio.CancelScope] = set()  # of those that wait for their model
        self._emptied = anyio.Event()
        self.over = anyio.Event()  # no request is admitted any more
        self.waiting = 0
        self.draining = False
        self.stopped = False

    @property
    def running(self) -> int:
        """Number of admitted requests."""
        return len(self._scopes)

    @asynccontextmanager
    async def place(self, seconds: float) -> AsyncIterator[None]:
        """Admits one request for at most `seconds`, waiting included, for its model as well.

        Raises ApiError where too many wait or the server stops, and TimeoutError.
        """
        self._check(math.inf if self._places.value else self._most_waiting)
        with anyio.fail_after(seconds - _waited.get()):
            self.waiting += 1
            try:
                await self._places.acquire()
            finally:
                self.waiting -= 1
            scope = anyio.CancelScope()
            try:
                with scope:
                    self._scopes.add(scope)
                    if self.stopped:
                        raise _stopping()
                    yield
                if scope.cancelled_caught:
                    raise _stopping()
            finally:
                self._leave(scope)

    @contextmanager
    def waits(self, seconds: float) -> Iterator[None]:
        """A request that waits for its model in this block, before it asks for its place. Raises as `place` does."""
        self._check(max(self._most_waiting, 1))  # else nothing would be opened where nobody is to wait
        scope, began = anyio.CancelScope(), time.monotonic()
        self.waiting += 1
        self._scopes_of_waiting.add(scope)
        try:
            with anyio.fail_after(seconds), scope:
                yield
            if scope.cancelled_caught:
                raise _stopping()
        finally:
            self._scopes_of_waiting.discard(scope)
            self.waiting -= 1
            _waited.set(time.monotonic() - began)

    async def idle(self) -> None:
        """Waits until no admitted request is left."""
        while self._scopes:
            await self._emptied.wait()

    async def drain(self, seconds: float) -> int:
        """Stops admitting requests and waits up to `seconds` for the admitted ones; the rest are cancelled with an
        error.

        Returns the number of cancelled requests.
        """
        self.draining = True
        with anyio.move_on_after(seconds):
            await self.idle()
        late = len(self._scopes)
        self.stopped = True
        for scope in (*self._scopes, *self._scopes_of_waiting):
            scope.cancel()
        self.over.set()
        return late

    def _check(self, most_waiting: float) -> None:
        if self.draining:
            raise _stopping()
        if self.waiting >= most_waiting:
            raise busy(f"{self.waiting} requests wait already; come back later", 1 + self.waiting // 16)

    def _leave(self, scope: anyio.CancelScope) -> None:
        self._scopes.discard(scope)
        self._places.release()
        if not self._scopes:
            self._emptied.set()
            self._emptied = anyio.Event()


def request_timeout(header: str | None, most: float) -> float:
    """Time limit of a request in seconds: the header's value, at most `most`. Raises ApiError for an invalid header."""
    if header is None:
        return most
    try:
        seconds = float(header)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ApiError("invalid", "X-Request-Timeout must be a number of seconds above 0", param="X-Request-Timeout")
    return min(seconds, most)


def _stopping() -> ApiError:
    return ApiError("stopping", "the server is stopping; send the request again to the next one", "stopping")
