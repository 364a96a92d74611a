"""`POST /v1/embeddings`: what a model that writes has none of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from ..refused import Refused

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..server import Server


async def refuse_embeddings(server: Server, request: Request) -> Response:
    """Raises Refused, which says so."""
    told = "this server makes no embeddings: the model writes text; ask a server of an embedding model"
    raise Refused("invalid", told, "unsupported_endpoint")
