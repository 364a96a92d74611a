"""The ASGI application of a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from difflib import get_close_matches
from functools import cache, partial
from typing import TYPE_CHECKING

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from .admission import begin_request
from .anthropic import events, messages
from .anthropic.errors import AnthropicErrors
from .choice import chosen, take_model
from .http.errors import STATUS, ApiError, to_api_error
from .http.middleware import ENDPOINT, MODEL, ApiKeyMiddleware, Hosts, MetricsMiddleware, cors
from .http.openapi import openapi
from .models import Models, models_over
from .openai import items, responses
from .openai.errors import OpenAIErrors
from .routes import BODIES, ENDPOINTS, OF_A_MODEL, OF_ALL

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from .._context.context import Context
    from .http.responses import ErrorFormat
    from .routes import Endpoint, EndpointOfAll
    from .settings import Settings


def application(context: Context, settings: Settings) -> Starlette:
    """Makes the ASGI application that serves a Context, which must stay open as long as the application runs.

    `application.state.server` is the `Server` behind it.
    """
    app = application_of(models_over(context, settings))
    app.state.server = app.state.models.all[0].server
    return app


def application_of(models: Models) -> Starlette:
    """Makes the ASGI application that serves these models; they are its `application.state.models`."""
    _build_shapes()
    settings = models.settings
    routes = [
        *(_route(method, path, _OfAll(path, endpoint, models)) for (method, path), endpoint in OF_ALL.items()),
        *(_route(method, path, _OfAModel(path, endpoint, models)) for (method, path), endpoint in OF_A_MODEL.items()),
    ]
    description = cache(partial(openapi, ENDPOINTS, BODIES))  # takes a moment that no start waits for
    routes.append(Route("/openapi.json", lambda request: JSONResponse(description(tuple(models.names(request))))))
    middleware = [Middleware(MetricsMiddleware, metrics=models.metrics)]
    if settings.hosts:
        middleware.append(Middleware(Hosts, names=settings.hosts, errors=errors_of))
    if settings.origins:
        middleware.append(Middleware(cors, origins=settings.origins))
    if settings.all_keys:
        middleware.append(Middleware(ApiKeyMiddleware, keys=settings.all_keys, errors=errors_of))
    app = Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _no_such})
    app.router.redirect_slashes = False
    app.state.models = models
    return app


def _route(method: str, path: str, answers: ASGIApp) -> Route:
    return Route(path.replace("{model}", "{model:path}"), answers, methods=[method])


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


class _Answers(ABC):
    """One endpoint (ASGI). What a request uses is held until the last byte of its response."""

    def __init__(self, path: str, models: Models) -> None:
        self._path = path
        self._models = models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        scope[ENDPOINT] = self._path
        begin_request()
        async with AsyncExitStack() as stack:
            try:
                response = await self._response(scope, receive, stack)
            except ClientDisconnect:  # there is no reader for an answer
                response = Response(status_code=400)
            except Exception as error:
                response = errors_of(scope["path"]).error_response(to_api_error(error))
            await response(scope, receive, send)

    @abstractmethod
    async def _response(self, scope: Scope, receive: Receive, stack: AsyncExitStack) -> Response:
        """The response, or an error. What it uses is entered on the stack."""


class _OfAll(_Answers):
    def __init__(self, path: str, endpoint: EndpointOfAll, models: Models) -> None:
        super().__init__(path, models)
        self._endpoint = endpoint

    async def _response(self, scope: Scope, receive: Receive, stack: AsyncExitStack) -> Response:
        return await self._endpoint(self._models, Request(scope, receive))


class _OfAModel(_Answers):
    def __init__(self, path: str, endpoint: Endpoint, models: Models) -> None:
        super().__init__(path, models)
        self._endpoint = endpoint

    async def _response(self, scope: Scope, receive: Receive, stack: AsyncExitStack) -> Response:
        named, request = take_model(scope), Request(scope, receive)
        model = await chosen(self._models, request, named, BODIES.get(self._endpoint))
        scope[MODEL] = model.name
        server = await stack.enter_async_context(self._models.use(model, request))
        return await self._endpoint(server, request)


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
