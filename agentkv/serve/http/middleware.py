"""Who may talk to the server at all: keys, names of the server, and pages of other origins."""

from __future__ import annotations

import hmac
import time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware

from ..._types.show import shown
from .errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ..metrics import Metrics
    from .responses import Protocols

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
            error = Refused(
                "key",
                "the API key is missing or wrong; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                "invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
            await self._errors(scope["path"]).error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _knows(self, headers: Headers) -> bool:
        """Is one of the keys the right one? Clients send several, some of them for others. Each is compared."""
        given = [*map(_without_scheme, headers.getlist("authorization")), *headers.getlist("x-api-key")]
        return any([hmac.compare_digest(key.strip().encode("latin-1"), self._key) for key in given])


def _without_scheme(authorization: str) -> str:
    """The key of a header. The name of a scheme may be written in any case (RFC 9110)."""
    scheme, _, key = authorization.strip().replace("\t", " ").partition(" ")
    return key if scheme.lower() == "bearer" else authorization


class Hosts:
    """ASGI middleware: refuses requests that call the server by another name than these."""

    def __init__(self, app: ASGIApp, names: Sequence[str], errors: Callable[[str], Protocols]) -> None:
        self._app = app
        self._names = frozenset(_name_in(name) for name in names)
        self._errors = errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http" and (name := _name_in(Headers(scope=scope).get("host", ""))) not in self._names:
            what = (
                f"the server is not called {shown(name).removeprefix('str ')}: it answers to "
                f"{', '.join(sorted(self._names))}; start it with --allow-host NAME, or with --host and a key"
            )
            error = Refused("invalid", what, "invalid_host", "host")
            await self._errors(scope["path"]).error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _name_in(host: str) -> str:
    """The name in a Host header, without its port; an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return (host if host.count(":") > 1 else host.partition(":")[0]).lower()


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
