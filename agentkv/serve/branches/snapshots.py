"""`/v1/branches/{branch}/snapshot`: branches published by one process under a name and fetched by others. Protocol of
`Branch.publish` and `Context.attach`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError
from pydantic_core import to_json
from starlette.responses import JSONResponse, Response

from ..._context.publish import branch_of, snapshot_of
from ..._documents.published import PublishedBranch
from ..._types.errors import InvalidInput
from ..http.body import Body, read_body
from ..http.errors import ApiError, check_ids, error_param
from ..http.idempotency import respond
from ..http.leniency import checked
from ..tokens.endpoints import check_model
from . import bodies
from .endpoints import branch_json

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..._context.branch import Branch
    from ..http.responses import Emit
    from ..server import Server

Revision = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


class Publish(Body):
    """`PUT .../snapshot`: the branch gets this name and `revision`. A present branch of that name is replaced if its
    revision is one of `replaces`. `model` is one of several that the server has."""

    model: str | None = None
    branch: dict[str, Any]
    revision: Revision
    replaces: Annotated[list[Revision], Field(max_length=256)] = []  # noqa: RUF012 - pydantic copies it
    fingerprint: str | None = None
    cache: str | None = None

    def published(self, vocab_size: int) -> PublishedBranch:
        """The branch to keep. Raises ApiError."""
        try:
            published = PublishedBranch.model_validate_json(to_json(self.branch))
            published.conversation()
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, ("branch", *first["loc"])))
            raise ApiError("invalid", f"{where}: {first['msg']}", "invalid_value", where) from None
        except (InvalidInput, ValueError) as error:
            raise ApiError("invalid", f"branch: {error}", "invalid_value", "branch") from None
        check_ids(published.tokens, vocab_size, "branch.tokens")
        return published


async def publish_branch(server: Server, request: Request) -> Response:
    """`PUT /v1/branches/{branch}/snapshot`: keeps a client's branch under a name."""
    name = checked(bodies.ChosenName, {"name": request.path_params["branch"]}, server.ignored).name
    body = await read_body(server, request, Publish)
    check_model(server, body.fingerprint, body.cache)
    published = body.published(server.context.model_info.vocab_size)

    async def work(emit: Emit) -> None:
        async with server.admitted(request.headers):
            replaced = server.branches.replaceable(name, body.replaces)
            with server.branches.room(0 if replaced else 1), error_param("branch"):
                branch = await _made(server, published)
                try:
                    server.branches.replaceable(name, body.replaces)  # others may have been quicker
                except ApiError:
                    branch.close()
                    raise
                entry = server.branches.add(branch, name=name, revision=body.revision)
        await emit(json.dumps({**branch_json(entry, whole=False), "revision": entry.revision}))

    return respond(server.branches.answers, request, body, work)


async def show_snapshot(server: Server, request: Request) -> Response:
    """`GET /v1/branches/{branch}/snapshot`: everything that another process needs to continue a branch."""
    name = request.path_params["branch"]
    if server.branches.get(name) is None:
        raise _not_found(server, name)
    with server.branches.using(name) as entry:
        revision = entry.revision  # read first: if the branch changes meanwhile, publishing over it is refused
        published = await snapshot_of(entry.branch)
        shown = {"branch": published.model_dump(mode="json"), "revision": revision}
        return JSONResponse({**shown, "fingerprint": server.model_fingerprint})


async def _made(server: Server, published: PublishedBranch) -> Branch:
    """Makes a branch of these tokens and prefills those that are not cached."""
    if not published.tokens:
        source = await server.with_room(lambda: server.context.branch(adapter=server.adapter))
    else:
        source = await server.with_room(
            lambda: server.context.branch(published.tokens, overflow=server, adapter=server.adapter)
        )
    try:
        return await server.with_room(lambda: branch_of(source, published, server))
    finally:
        source.close()


def _not_found(server: Server, name: str) -> ApiError:
    names = [entry.id for entry in server.branches.named()]
    there = f"there are {', '.join(map(repr, names[:8]))}{' ...' if names[8:] else ''}" if names else "there is none"
    what = f"no branch is published as {name!r}; {there}. It may have been idle for too long: publish it again"
    return ApiError("missing", what, "branch_not_found")
