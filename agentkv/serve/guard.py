"""Who may talk to the server at all: keys, and pages of other origins."""

from __future__ import annotations

import hmac
import time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware

from .refused import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from .event_stream import Protocols
    from .metrics import Metrics

OPEN = ("/health",)
ENDPOINT = "agentkv.endpoint"  # of a scope: the path as its endpoint has it


class Guard:
    """ASGI middleware: refuses requests without the key."""

    def __init__(self, app: ASGIApp, key: str, errors: Callable[[str], Protocols]) -> None:
        self._app = app
        self._key = key.encode()
        self._errors = errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http" and scope["path"] not in OPEN and not self._knows(Headers(scope=scope)):
            error = Refused("key", "the API key is missing or wrong", "invalid_api_key")
            await self._errors(scope["path"]).error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _knows(self, headers: Headers) -> bool:
        given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode("latin-1"), self._key)


class Measured:
    """ASGI middleware: counts requests and their seconds, by the path of their endpoint."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began = "none", time.perf_counter()  # none: its client hung up first

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            path = scope.get(ENDPOINT, "other")  # clients do not choose our labels
            self._metrics.requests.labels(path, status).inc()
            self._metrics.seconds.labels(path).observe(time.perf_counter() - began)


def cors(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """Lets scripts of these pages in."""
    return CORSMiddleware(app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
