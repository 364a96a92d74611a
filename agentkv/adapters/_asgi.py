"""Transports of OpenAI's client to an ASGI application in this process, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx2

from .._types.errors import ContextClosed

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from .._aio.loop_thread import LoopPortal


class InProcessApp(NamedTuple):
    """An ASGI application and its event loop."""

    app: ASGIApp
    loop: LoopPortal


class _Head(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]


class _Exchange:
    """One request. Its coroutines run on the application's event loop."""

    def __init__(self, app: ASGIApp, request: httpx2.Request, body: bytes) -> None:
        self._app = app
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": request.url.raw_path.split(b"?")[0],
            "query_string": request.url.query,
            "server": None,
            "client": None,
            "root_path": "",
        }
        self._body: bytes | None = body
        self._patience = request.extensions.get("timeout", {}).get("read")  # seconds; None for any time
        self._sent: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # once it has begun

    async def begin(self) -> _Head:
        """Sends the request and returns the response's head. Raises ReadTimeout and the application's errors."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._answer())
        try:
            first = await self._heard()
        except BaseException:
            await self.close()
            raise
        if first is None:
            await self._task  # raises what the application did
            raise httpx2.RemoteProtocolError("the application ended without a response")
        return _Head(first["status"], list(first["headers"]))

    async def next(self) -> bytes | None:
        """Next part of the response's body; None at its end. Raises ReadTimeout."""
        event = await self._heard()
        return None if event is None else event.get("body", b"")

    def leave(self) -> None:
        """Disconnects without waiting. Any thread may call it at any time."""
        if self._loop is not None:  # else it was cancelled before it began
            with suppress(RuntimeError):  # the application has ended
                self._loop.call_soon_threadsafe(self._gone.set)

    async def close(self) -> None:
        """Disconnects and waits until the application's task has ended."""
        self._gone.set()
        while not self._task.done():  # a cancelled caller waits all the same
            try:
                await asyncio.wait([self._task])
            except asyncio.CancelledError:
                self._task.cancel()
        if not self._task.cancelled():
            self._task.exception()  # marks it as retrieved: the client has disconnected

    async def _heard(self) -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(self._patience):
                return await self._sent.get()
        except TimeoutError:
            raise httpx2.ReadTimeout(f"nothing came for {self._patience:g} s") from None

    async def _answer(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        finally:
            self._sent.put_nowait(None)

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, event: Any) -> None:
        self._sent.put_nowait(event)
        await asyncio.sleep(0)  # lets the reader run before the next part is made


class AsyncTransport(httpx2.AsyncBaseTransport):
    """Transport of a client on any asyncio event loop. `door` opens the application if needed; `close` closes it with
    the client."""

    def __init__(self, door: Callable[[], Awaitable[InProcessApp]], close: Callable[[], None] | None = None) -> None:
        self._door = door
        self._close = close

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request. Raises as opening the application does."""
        door = await self._door()
        exchange = _Exchange(door.app, request, await request.aread())
        try:
            head = await door.loop.run(exchange.begin())
        except BaseException:  # it may have begun all the same: on another event loop than the caller's
            exchange.leave()
            raise
        return httpx2.Response(head.status, headers=head.headers, stream=_AsyncBody(door.loop, exchange))

    async def aclose(self) -> None:
        if self._close is not None:
            await asyncio.to_thread(self._close)


class Transport(httpx2.BaseTransport):
    """Transport of a client without an event loop. `door` opens the application if needed; `close` closes it with the
    client."""

    def __init__(self, door: Callable[[], InProcessApp], close: Callable[[], None] | None = None) -> None:
        self._door = door
        self._close = close

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request. Raises as opening the application does, and WrongEventLoop on the application's own event
        loop."""
        door = self._door()
        exchange = _Exchange(door.app, request, request.read())
        try:
            head = door.loop.wait(exchange.begin())
        except BaseException:  # such as Ctrl-C: it may have begun all the same
            exchange.leave()
            raise
        return httpx2.Response(head.status, headers=head.headers, stream=_Body(door.loop, exchange))

    def close(self) -> None:
        if self._close is not None:
            self._close()


class _AsyncBody(httpx2.AsyncByteStream):
    def __init__(self, loop: LoopPortal, exchange: _Exchange) -> None:
        self._loop = loop
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (part := await self._loop.run(self._exchange.next())) is not None:
            yield part

    async def aclose(self) -> None:
        self._exchange.leave()  # what follows may be cancelled before it begins
        with suppress(ContextClosed):  # the application has ended
            await self._loop.run(self._exchange.close())


class _Body(httpx2.SyncByteStream):
    def __init__(self, loop: LoopPortal, exchange: _Exchange) -> None:
        self._loop = loop
        self._exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        while (part := self._loop.wait(self._exchange.next())) is not None:
            yield part

    def close(self) -> None:
        with suppress(ContextClosed):
            self._loop.wait(self._exchange.close())
