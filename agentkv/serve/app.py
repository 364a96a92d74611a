"""The ASGI application of a server."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache, partial
from typing import TYPE_CHECKING

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from .anthropic import events, messages
from .anthropic.errors import AnthropicErrors
from .http.errors import STATUS, ApiError, to_api_error
from .http.middleware import ENDPOINT, ApiKeyMiddleware, Hosts, MetricsMiddleware, cors
from .http.openapi import openapi
from .openai import items, responses
from .openai.errors import OpenAIErrors
from .routes import BODIES, ENDPOINTS
from .server import Server

if TYPE_CHECKING:
    from starlette.requests import Request

    from .._context.context import Context
    from .http.responses import ErrorFormat
    from .routes import Endpoint
    from .settings import Settings


def application(context: Context, settings: Settings) -> Starlette:
    """Makes the ASGI application that serves a Context, which must stay open as long as the application runs.

    `application.state.server` is the `Server` behind it.
    """
    _build_shapes()
    server = Server(context, settings)
    routes = [
        Route(path.replace("{model}", "{model:path}"), partial(_answered, path, endpoint, server), methods=[method])
        for (method, path), endpoint in ENDPOINTS.items()
    ]
    description = cache(partial(openapi, ENDPOINTS, BODIES, settings.names))  # takes a moment that no start waits for
    routes.append(Route("/openapi.json", lambda request: JSONResponse(description())))
    middleware = [Middleware(MetricsMiddleware, metrics=server.metrics)]
    if settings.hosts:
        middleware.append(Middleware(Hosts, names=settings.hosts, errors=errors_of))
    if settings.origins:
        middleware.append(Middleware(cors, origins=settings.origins))
    if settings.api_key is not None:
        middleware.append(Middleware(ApiKeyMiddleware, key=settings.api_key, errors=errors_of))
    app = Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _no_such})
    app.router.redirect_slashes = False
    app.state.server = server
    return app


def _build_shapes() -> None:
    """Builds pydantic's validators of response models, which would otherwise delay the first response that uses
    them."""
    for module in (events, messages, items, responses):
        for shape in vars(module).values():
            if isinstance(shape, type) and issubclass(shape, BaseModel) and shape is not BaseModel:
                shape.model_rebuild()


def errors_of(path: str) -> ErrorFormat:
    """Error format of a path's protocol."""
    return AnthropicErrors() if path.startswith("/v1/messages") else OpenAIErrors()


async def _answered(path: str, endpoint: Endpoint, server: Server, request: Request) -> Response:
    request.scope[ENDPOINT] = path
    try:
        return await endpoint(server, request)
    except ClientDisconnect:  # during its body: there is no reader for an answer
        return Response(status_code=400)
    except Exception as error:
        return errors_of(request.url.path).error_response(to_api_error(error))


async def _no_such(request: Request, error: Exception) -> Response:
    """Error response for unknown paths and methods."""
    assert isinstance(error, HTTPException)
    path, routes = request.url.path, request.app.routes
    if error.status_code == STATUS["method"]:
        here = [route.methods for route in routes if route.matches(request.scope)[0] is not Match.NONE]
        allowed = ", ".join(sorted(set().union(*here)))
        told = ApiError(
            "method", f"{path} takes {allowed}, not {request.method}", "method_not_allowed", headers={"allow": allowed}
        )
    else:
        near = get_close_matches(path, [route.path for route in routes], 1, 0.75)
        advice = f"did you mean {near[0]}?" if near else "/openapi.json lists what there is"
        told = ApiError("missing", f"there is nothing at {path}; {advice}", "not_found")
    return errors_of(path).error_response(told)
