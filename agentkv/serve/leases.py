"""`/v1/leases`: branches that end with the connection of those who made them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anyio
from starlette.responses import Response

from . import branch_request as bodies
from .event_stream import EventStream
from .leniency import checked
from .openai.chat import ERRORS

if TYPE_CHECKING:
    from starlette.requests import Request

    from .event_stream import Emit
    from .server import Server

PING_SECONDS = 15.0  # what lies between would take a silent connection for a dead one


async def hold_lease(server: Server, request: Request) -> Response:
    """`GET /v1/leases/{lease}`: server-sent events without an end. With the connection the lease ends, and its branches
    are closed."""
    lease = checked(bodies.Lease, dict(request.path_params), server.ignored).lease
    over = server.admission.over

    async def stream(emit: Emit) -> None:
        with server.branches.leased(lease):
            await emit(json.dumps({"lease": lease}), "begin")
            while not over.is_set():
                with anyio.move_on_after(PING_SECONDS):
                    await over.wait()
                await emit("{}", "ping")

    return EventStream(stream, ERRORS)
