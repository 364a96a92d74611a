"""Which model a request means: by its body, by what its path names, by `?model=`, or else the first."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from .http.body import read_body
from .http.errors import ApiError
from .openai.responses import kept_as

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Scope

    from .http.body import Body
    from .models import Models, ServedModel


def take_model(scope: Scope) -> str | None:
    """Takes `model` out of a request's query, as no endpoint knows it. Raises ApiError where it is there twice."""
    query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    names: list[str] = [value for name, value in query if name == "model"]
    if not names:
        return None
    if len(set(names)) > 1:
        raise ApiError("invalid", f"model is there {len(names)} times; name one", "invalid_value", "model")
    scope["query_string"] = urlencode([each for each in query if each[0] != "model"]).encode("latin-1")
    return names[0]


async def chosen(models: Models, request: Request, named: str | None, shape: type[Body] | None) -> ServedModel:
    """The model that a request means. `named` is what its query says, `shape` that of its body.

    Raises ApiError for a body of another shape, and for a model that there is not.
    """
    if shape is not None:
        body = await read_body(models, request, shape)
        in_body: str | None = getattr(body, "model", None)
        if named is not None and in_body not in (None, named):
            told = f"model is {in_body!r} in the body and {named!r} in the query; name one"
            raise ApiError("invalid", told, "invalid_value", "model")
        if in_body is not None:
            return models.called(in_body, request, shape.known_models)
    if named is not None:
        return models.called(named, request)
    return _by_id(models.usable(request), request)


def _by_id(usable: list[ServedModel], request: Request) -> ServedModel:
    """The model that has what the path names; else an open one, which says what is missing."""
    knowing = [model for model in usable if _knows(model, request)]
    if len(knowing) > 1:
        names = ", ".join(model.name for model in knowing)
        what = f"several models have a branch of that name: {names}; say which by ?model="
        raise ApiError("conflict", what, "ambiguous_model", "model")
    is_named = "branch" in request.path_params or "response" in request.path_params
    opened = [model for model in usable if model.server is not None and is_named and request.method != "PUT"]
    return [*knowing, *opened, *usable][0]


def _knows(model: ServedModel, request: Request) -> bool:
    branch, response = request.path_params.get("branch"), request.path_params.get("response")
    if branch is not None:
        key = request.headers.get("idempotency-key")
        return model.branches.get(branch) is not None or (request.method == "DELETE" and key in model.branches.answers)
    return response is not None and model.server is not None and model.server.cache.kept(kept_as(response)) is not None
