"""`/v1/models`: the served model under each of its names; and `/v1/embeddings`, which this server refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openai.types import Model
from starlette.responses import JSONResponse, Response

from ..http.errors import ApiError

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..server import Server


async def list_models(server: Server, request: Request) -> Response:
    """`GET /v1/models`: all names of the model."""
    data = [_model(server, name).model_dump() for name in server.settings.names]
    return JSONResponse({"object": "list", "data": data})


async def show_model(server: Server, request: Request) -> Response:
    """`GET /v1/models/{model}`: the model under one of its names."""
    name = request.path_params["model"]
    server.check_model(name)
    return JSONResponse(_model(server, name).model_dump())


def _model(server: Server, name: str) -> Model:
    return Model(id=name, created=server.began, object="model", owned_by="agentkv")


async def refuse_embeddings(server: Server, request: Request) -> Response:
    """`POST /v1/embeddings`: always an error, since the model generates text."""
    told = "this server makes no embeddings: the model writes text; ask a server of an embedding model"
    raise ApiError("invalid", told, "unsupported_endpoint")
