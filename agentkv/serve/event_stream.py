"""Responses that take a while: whole, or as server-sent events. A client that hangs up ends what it asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import anyio
from starlette.responses import Response

from .refused import Refused, refused

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class Emit(Protocol):
    """Sends one event."""

    async def __call__(self, data: str, event: str | None = None) -> None:
        """`data` is one line; `event` is the event's name."""


class Protocols(Protocol):
    """How a protocol writes errors."""

    def error_response(self, error: Refused) -> Response:
        """As the whole response."""

    def error_event(self, error: Refused) -> tuple[str, str | None]:
        """In a stream that has begun: data and name of the event."""


class Answer(Response):
    """The response that `work` returns, unless its client hangs up first."""

    def __init__(self, work: Callable[[], Awaitable[Response]], errors: Protocols) -> None:
        self._work = work
        self._errors = errors
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        response: Response | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(_hang_up, receive, group.cancel_scope)
            try:
                response = await self._work()
            except Exception as error:
                response = self._errors.error_response(refused(error))
            group.cancel_scope.cancel()
        if response is not None:
            with anyio.move_on_after(LAST_SECONDS):
                await response(scope, receive, send)


class EventStream(Response):
    """Server-sent events that `work` emits. What is refused before the first one is an error response."""

    def __init__(
        self, work: Callable[[Emit], Awaitable[None]], errors: Protocols, headers: Mapping[str, str] | None = None
    ) -> None:
        self._work = work
        self._errors = errors
        self._head = [*_HEADERS, *((name.encode(), value.encode()) for name, value in (headers or {}).items())]
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        begun = False

        async def emit(data: str, event: str | None = None) -> None:
            nonlocal begun
            if not begun:
                begun = True
                await send({"type": "http.response.start", "status": 200, "headers": self._head})
            name = "" if event is None else f"event: {event}\n"
            body = f"{name}data: {data}\n\n".encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})

        failure: Response | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(_hang_up, receive, group.cancel_scope)
            try:
                await self._work(emit)
            except Exception as error:
                told = refused(error)
                if not begun:
                    failure = self._errors.error_response(told)
                with anyio.move_on_after(LAST_SECONDS):
                    if begun:
                        await emit(*self._errors.error_event(told))
            with anyio.move_on_after(LAST_SECONDS):
                if begun:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
            group.cancel_scope.cancel()
        if failure is not None:
            with anyio.move_on_after(LAST_SECONDS):
                await failure(scope, receive, send)


LAST_SECONDS = 10.0  # for what is left to send: a client that does not read must not keep its connection for ever

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


async def _hang_up(receive: Receive, scope: anyio.CancelScope) -> None:
    """Cancels once the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
