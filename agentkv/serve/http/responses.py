"""Long-running responses, whole or as server-sent events. A client that disconnects cancels its request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ..._aio.tasks import FirstErrorGroup
from .errors import ApiError, to_api_error

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class Emit(Protocol):
    """Callable that takes one event."""

    async def __call__(self, data: str, event: str | None = None) -> None:
        """`data` is one line; `event` is the event's name."""


class ErrorFormat(Protocol):
    """Shape of a protocol's errors."""

    def error_response(self, error: ApiError) -> Response:
        """Returns the error as a whole response."""

    def error_event(self, error: ApiError) -> tuple[str, str | None]:
        """Returns the error as an event, data and name, in a stream that has begun."""

    @property
    def ping(self) -> bytes:
        """Bytes of a keep-alive in a silent stream."""


class CancellableResponse(Response):
    """The response that `work` returns, cancelled if the client disconnects first."""

    def __init__(self, work: Callable[[], Awaitable[Response]], errors: ErrorFormat) -> None:
        self._work = work
        self._errors = errors
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the work and sends its response (ASGI)."""
        response: Response | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(_hang_up, receive, group.cancel_scope)
            try:
                response = await self._work()
            except Exception as error:
                response = self._errors.error_response(to_api_error(error))
            group.cancel_scope.cancel()
        if response is not None:
            with anyio.move_on_after(LAST_SECONDS):
                await response(scope, receive, send)


class Events(Emit):
    """Sends the events of one response. The head goes out with the first event, or earlier by `begin`.

    Attributes:
        begun: whether the head was sent.
        alive: sends a keep-alive. Protocols whose clients count only events replace it by an event of theirs.
    """

    alive: Callable[[], Awaitable[None]]

    def __init__(self, send: Send, head: Sequence[tuple[bytes, bytes]], ping: bytes) -> None:
        self._send = send
        self._head = head
        self.alive = partial(self._body, ping)
        self._sending = anyio.Lock()  # one part at a time
        self._count = 0  # sent parts of the body
        self.begun = False

    async def __call__(self, data: str, event: str | None = None) -> None:
        """Sends one event. `data` is one line; `event` is the event's name."""
        name = "" if event is None else f"event: {event}\n"
        await self._body(f"{name}data: {data.translate(_LINE_ENDS)}\n\n".encode())

    async def begin(self) -> None:
        """Sends the head before the first event; errors from then on are events."""
        async with self._sending:
            await self._begin()

    async def end(self) -> None:
        """Ends the response."""
        await self._body(b"", more=False)

    async def ping(self) -> None:
        """Sends a keep-alive each time that nothing was sent for PING_SECONDS. Never returns."""
        while True:
            before = self._count
            await anyio.sleep(PING_SECONDS)
            if self._count == before:
                await self.alive()

    async def _body(self, body: bytes, more: bool = True) -> None:
        async with self._sending:
            self._count += 1
            await self._begin()
            await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self._head})


class EventStream(Response):
    """Response of the server-sent events that `work` emits. An error before the head was sent is an error response.

    The head goes out with the first event, by `Events.begin`, or with the first keep-alive after PING_SECONDS. Each
    further silence of that length has a keep-alive.
    """

    def __init__(
        self, work: Callable[[Events], Awaitable[None]], errors: ErrorFormat, headers: Mapping[str, str] | None = None
    ) -> None:
        self._work = work
        self._errors = errors
        self._head = [*_HEADERS, *((name.encode(), value.encode()) for name, value in (headers or {}).items())]
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the work and sends its events (ASGI)."""
        emit = Events(send, self._head, self._errors.ping)
        failure: Response | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(_hang_up, receive, group.cancel_scope)
            group.start_soon(emit.ping)
            try:
                await self._work(emit)
            except Exception as error:
                told = to_api_error(error)
                if emit.begun:
                    with anyio.move_on_after(LAST_SECONDS):
                        await emit(*self._errors.error_event(told))
                else:
                    failure = self._errors.error_response(told)
            if failure is None:
                with anyio.move_on_after(LAST_SECONDS):
                    await emit.end()
            group.cancel_scope.cancel()
        if failure is not None:
            with anyio.move_on_after(LAST_SECONDS):
                await failure(scope, receive, send)


PING_SECONDS = 10.0  # proxies hang up after 30 to 100 s without a byte, and people lose faith before
LAST_SECONDS = 10.0  # for the last part: a client that does not read must not keep its connection for ever

# Many event parsers split lines at these, against the standard. In JSON they occur only inside strings.
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancels its block once the client has disconnected, and raises ClientDisconnect. The body must have been read."""
    over = False
    async with FirstErrorGroup() as group:
        group.start_soon(_hang_up, receive, group.cancel_scope)
        yield
        over = True
        group.cancel_scope.cancel()
    if not over:
        raise ClientDisconnect


async def _hang_up(receive: Receive, scope: anyio.CancelScope) -> None:
    """Cancels the scope once the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
