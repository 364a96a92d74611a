"""Access control as middleware: keys, host names and origins; and the metrics of requests."""

from __future__ import annotations

import hmac
import time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware

from ..._types.show import preview
from .errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ..metrics import Metrics
    from .responses import ErrorFormat

OPEN = ("/health",)
ENDPOINT = "agentkv.endpoint"  # key of a scope: the endpoint's path template
MODEL = "agentkv.model"  # the model that answers
MODELS = "agentkv.models"  # those that the request's key may use; not there for all


class ApiKeyMiddleware:
    """ASGI middleware: refuses requests without one of the keys. Each is for all models (None), or for some."""

    def __init__(
        self, app: ASGIApp, keys: Mapping[str, Sequence[str] | None], errors: Callable[[str], ErrorFormat]
    ) -> None:
        self._app = app
        self._keys = {key.encode(): models for key, models in keys.items()}
        self._errors = errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it (ASGI)."""
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        known = self._known(Headers(scope=scope))
        if not known:
            error = ApiError(
                "key",
                "the API key is missing or wrong; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                "invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
            await self._errors(scope["path"]).error_response(error)(scope, receive, send)
            return
        if None not in (models := [self._keys[key] for key in known]):
            scope[MODELS] = frozenset(name for some in models for name in some or ())
        await self._app(scope, receive, send)

    def _known(self, headers: Headers) -> list[bytes]:
        """The keys that a client has. Clients send several; all are compared with all, in constant time."""
        sent = [*map(_without_scheme, headers.getlist("authorization")), *headers.getlist("x-api-key")]
        given = [key.strip().encode("latin-1") for key in sent]
        return [key for key in self._keys if any([hmac.compare_digest(each, key) for each in given])]


def _without_scheme(authorization: str) -> str:
    """Key in an Authorization header. The scheme's name is case-insensitive (RFC 9110)."""
    scheme, _, key = authorization.strip().replace("\t", " ").partition(" ")
    return key if scheme.lower() == "bearer" else authorization


class Hosts:
    """ASGI middleware: refuses requests whose Host header has none of these names."""

    def __init__(self, app: ASGIApp, names: Sequence[str], errors: Callable[[str], ErrorFormat]) -> None:
        self._app = app
        self._names = frozenset(_name_in(name) for name in names)
        self._errors = errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it (ASGI)."""
        if scope["type"] == "http" and (name := _name_in(Headers(scope=scope).get("host", ""))) not in self._names:
            what = (
                f"the server is not called {preview(name).removeprefix('str ')}: it answers to "
                f"{', '.join(sorted(self._names))}; start it with --allow-host NAME, or with --host and a key"
            )
            error = ApiError("invalid", what, "invalid_host", "host")
            await self._errors(scope["path"]).error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _name_in(host: str) -> str:
    """Name in a Host header, lowercase, without port or an IPv6 address's brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return (host if host.count(":") > 1 else host.partition(":")[0]).lower()


class MetricsMiddleware:
    """ASGI middleware: counts requests and measures their seconds, by path of the endpoint."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on and measures it (ASGI)."""
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
            self._metrics.answered(path, status, scope.get(MODEL, ""), time.perf_counter() - began)


def cors(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """Admits scripts of these origins."""
    return CORSMiddleware(app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
