"""`/v1/models`: the served model under each of its names; and `/v1/embeddings`, which a generating model refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openai.types import Model
from starlette.responses import JSONResponse, Response

from ..http.errors import ApiError

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..server import Server


async def list_models(server: Server, request: Request) -> Response:
    """All names."""
    data = [_model(server, name).model_dump() for name in server.settings.names]
    return JSONResponse({"object": "list", "data": data})


async def show_model(server: Server, request: Request) -> Response:
    """One of them."""
    name = request.path_params["model"]
    server.check_model(name)
    return JSONResponse(_model(server, name).model_dump())


def _model(server: Server, name: str) -> Model:
    return Model(id=name, created=server.began, object="model", owned_by="agentkv")


async def refuse_embeddings(server: Server, request: Request) -> Response:
    """Raises ApiError, which says so."""
    told = "this server makes no embeddings: the model writes text; ask a server of an embedding model"
    raise ApiError("invalid", told, "unsupported_endpoint")
