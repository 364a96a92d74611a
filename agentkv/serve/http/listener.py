"""HTTP listener: uvicorn, which closes connections that send no complete request head in time."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ..._types.errors import InvalidInput
from ..._types.extras import needs_extra

with needs_extra("serve"):
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.types import ASGIApp

HEADER_SECONDS = 20.0  # for the whole head of a request


def bind_socket(host: str, port: int) -> socket.socket:
    """Binds and listens. Raises InvalidInput for an address that is not available."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InvalidInput(
            f"cannot listen on {host} port {port}: {_reason(error)}; pass another host or port"
        ) from error


def _reason(error: OSError) -> str:
    """What the system says, once: `create_server` adds the address to it, and the same again."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)


def listener(app: ASGIApp) -> uvicorn.Server:
    """Makes an HTTP server that leaves signals and the lifespan of `app` to its caller."""
    config = uvicorn.Config(
        app,
        http=_HeaderTimeoutProtocol,
        ws="none",
        lifespan="off",
        log_level="warning",
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=15,
    )
    return _Listener(config)


class _Listener(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures no signals."""
        yield


class _HeaderTimeoutProtocol(H11Protocol):
    """HTTP/1.1 of one client, with a time limit on each request head: without it a slow client occupies its connection
    for ever (slow loris)."""

    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Starts the timer of the first request head and disables Nagle's algorithm."""
        super().connection_made(transport)
        # asyncio does this only for sockets with an explicit protocol number. Without it an answer waits for the
        # client's delayed acknowledgement (RFC 896), 40 ms per request.
        with suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Starts or stops the timer, depending on whether a request head is complete."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timer."""
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._due is None:
            self._due = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _forget(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
