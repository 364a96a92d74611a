"""What listens for HTTP: uvicorn, which hangs up on clients that never come to ask anything."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..._types.errors import InvalidInput

if TYPE_CHECKING:
    from starlette.types import ASGIApp

HEADER_SECONDS = 20.0  # for the whole head of a request


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises InvalidInput for an address that cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InvalidInput(
            f"cannot listen on {host} port {port}: {error.strerror or error}; pass another address"
        ) from error


def listener(app: ASGIApp) -> uvicorn.Server:
    """A server of HTTP that leaves signals, and the lifespan of `app`, to whoever runs it."""
    config = uvicorn.Config(
        app,
        http=_Prompt,
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
        """Nothing is captured."""
        yield


class _Prompt(H11Protocol):
    """HTTP/1.1 of one client, who has so long for the head of each request: without that a slow one keeps its
    connection for ever (slow loris)."""

    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A client is there."""
        super().connection_made(transport)
        # asyncio does this for sockets that name their protocol, which those that listen here need not: without it an
        # answer waits for the client's delayed acknowledgement (RFC 896), 40 ms a request.
        with suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """It sent something."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
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
