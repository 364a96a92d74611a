"""`/v1/models`: all models, under each of their names; and `/v1/embeddings`, which this server refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openai.types import Model
from starlette.responses import JSONResponse, Response

from ..http.errors import ApiError

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..models import Models, ServedModel


async def list_models(models: Models, request: Request) -> Response:
    """`GET /v1/models`: all names of the models that the key may use; of several, whether each is open, and of
    adapters the model that they are of."""
    data = [_model(models, each, name, request) for each in models.usable(request) for name in each.settings.names]
    return JSONResponse({"object": "list", "data": data})


async def show_model(models: Models, request: Request) -> Response:
    """`GET /v1/models/{model}`: the model under one of its names."""
    name = request.path_params["model"]
    return JSONResponse(_model(models, models.called(name, request), name, request))


def _model(models: Models, model: ServedModel, name: str, request: Request) -> dict[str, Any]:
    told = Model(id=name, created=models.began, object="model", owned_by="agentkv").model_dump()
    if model.is_adapter:
        known = (each for each in models.usable(request) if each.name == model.base)  # the key may not know it
        told.update(("parent", each.settings.names[0]) for each in known)
    return told | ({"open": model.server is not None} if models.several else {})


async def refuse_embeddings(models: Models, request: Request) -> Response:
    """`POST /v1/embeddings`: always an error, since the model generates text."""
    told = "this server makes no embeddings: the model writes text; ask a server of an embedding model"
    raise ApiError("invalid", told, "unsupported_endpoint")
