"""`/v1/responses/{id}`: responses that are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, Response

from ..refused import Refused
from .responses import Stored, found, kept_as

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..server import Server


async def show_response(server: Server, request: Request) -> Response:
    """`GET`: the response as it was given."""
    return JSONResponse(_stored(server, request).response)


async def delete_response(server: Server, request: Request) -> Response:
    """`DELETE`: it is forgotten, and its cells are free. Those that went on from it stay."""
    _stored(server, request)
    response = request.path_params["response"]
    server.shelf.drop(kept_as(response))
    return JSONResponse({"id": response, "object": "response", "deleted": True})


async def list_input_items(server: Server, request: Request) -> Response:
    """`GET .../input_items`: its own input, without that of the responses before it; the newest first, or as the
    parameters `order`, `after` and `limit` say."""
    items = list(_stored(server, request, "order", "after", "limit").items)
    asked = request.query_params
    if asked.get("order", "desc") not in ("asc", "desc"):
        raise Refused("invalid", "order must be asc or desc", param="order")
    if asked.get("order", "desc") == "desc":
        items.reverse()
    if "after" in asked:
        ids = [item["id"] for item in items]
        if asked["after"] not in ids:
            raise Refused("invalid", "after names no item of this response", param="after")
        items = items[ids.index(asked["after"]) + 1 :]
    limit = asked.get("limit", "20")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:4]) <= 100):
        raise Refused("invalid", "limit must be a number from 1 to 100", param="limit")
    page = items[: int(limit)]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return JSONResponse({"object": "list", "data": page, "has_more": len(page) < len(items), **ends})


def _stored(server: Server, request: Request, *known: str) -> Stored:
    """Raises Refused, also for query parameters that mean nothing here."""
    for name in request.query_params:
        if name not in known:
            what = f"{name} is not supported by this server; leave it out"
            raise Refused("invalid", what, "unsupported_parameter", name)
    response = request.path_params["response"]
    missing = Refused("missing", f"there is no response {response!r}", "response_not_found", "response_id")
    return found(server, response, missing)[1]
