"""The doors of a server, as an ASGI application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .anthropic.count_tokens import count_tokens
from .anthropic.errors import AnthropicErrors
from .anthropic.messages import create_message
from .guard import Guard, Measured, cors
from .openai.chat import ERRORS, create_chat_completion
from .openai.completions import create_completion
from .openai.embeddings import refuse_embeddings
from .openai.models import list_models, show_model
from .plain import health, metrics
from .refused import STATUS, Refused, refused
from .server import Server
from .tokenizing import detokenize, tokenize

if TYPE_CHECKING:
    from starlette.requests import Request

    from .._context import Context
    from .event_stream import Protocols
    from .settings import Settings

Endpoint: TypeAlias = Callable[[Server, "Request"], Awaitable[Response]]

ENDPOINTS: Mapping[tuple[str, str], Endpoint] = {
    ("GET", "/health"): health,
    ("GET", "/metrics"): metrics,
    ("GET", "/v1/models"): list_models,
    ("GET", "/v1/models/{model}"): show_model,
    ("POST", "/v1/chat/completions"): create_chat_completion,
    ("POST", "/v1/completions"): create_completion,
    ("POST", "/v1/embeddings"): refuse_embeddings,
    ("POST", "/tokenize"): tokenize,
    ("POST", "/detokenize"): detokenize,
    ("POST", "/v1/messages"): create_message,
    ("POST", "/v1/messages/count_tokens"): count_tokens,
}


def application(context: Context, settings: Settings) -> Starlette:
    """An ASGI application that serves a Context, which stays open as long as it does.

    `application.state.server` is the `Server` behind it.
    """
    server = Server(context, settings)
    routes = [
        Route(path, partial(_answered, endpoint, server), methods=[method])
        for (method, path), endpoint in ENDPOINTS.items()
    ]
    middleware = [Middleware(Measured, metrics=server.metrics, paths=frozenset(path for _, path in ENDPOINTS))]
    if settings.origins:
        middleware.append(Middleware(cors, origins=settings.origins))
    if settings.api_key is not None:
        middleware.append(Middleware(Guard, key=settings.api_key, errors=errors_of))
    app = Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _no_such})
    app.state.server = server
    return app


def errors_of(path: str) -> Protocols:
    """How errors of a path are written."""
    return AnthropicErrors() if path.startswith("/v1/messages") else ERRORS


async def _answered(endpoint: Endpoint, server: Server, request: Request) -> Response:
    try:
        return await endpoint(server, request)
    except Exception as error:
        return errors_of(request.url.path).error_response(refused(error))


async def _no_such(request: Request, error: Exception) -> Response:
    """Paths and methods that there are not."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code not in STATUS.values():
        return JSONResponse({"error": {"message": error.detail}}, error.status_code, headers=error.headers)
    return errors_of(path).error_response(Refused("missing", f"there is nothing at {path}", "not_found"))
