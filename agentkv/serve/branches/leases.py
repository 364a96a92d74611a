"""`/v1/leases`: leases, whose branches end with the connection."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from starlette.responses import Response

from ..http.leniency import checked
from ..http.responses import EventStream
from ..openai.chat import ERRORS
from . import bodies

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..http.responses import Emit
    from ..server import Server


async def hold_lease(server: Server, request: Request) -> Response:
    """`GET /v1/leases/{lease}`: holds a lease by an open stream of server-sent events.

    With the connection the lease ends, and its branches are closed.
    """
    lease = checked(bodies.LeaseBody, dict(request.path_params), server.ignored).lease
    over = server.admission.over

    async def stream(emit: Emit) -> None:
        with server.branches.leased(lease):
            await emit(json.dumps({"lease": lease}), "begin")
            await over.wait()

    return EventStream(stream, ERRORS)
