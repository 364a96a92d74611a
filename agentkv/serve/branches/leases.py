"""`/v1/leases`: leases, whose branches end with the connection."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

from starlette.responses import Response

from ..http.leniency import checked
from ..http.responses import EventStream
from ..openai.chat import ERRORS
from . import bodies

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..http.responses import Emit
    from ..models import Models


async def hold_lease(models: Models, request: Request) -> Response:
    """`GET /v1/leases/{lease}`: holds a lease by an open stream of server-sent events.

    With the connection the lease ends, and its branches are closed, of whatever model.
    """
    lease = checked(bodies.LeaseBody, dict(request.path_params), models.ignored).lease
    over, usable = models.admission.over, models.usable(request)

    async def stream(emit: Emit) -> None:
        with ExitStack() as stack:
            for model in usable:
                stack.enter_context(model.branches.leased(lease))
            await emit(json.dumps({"lease": lease}), "begin")
            await over.wait()

    return EventStream(stream, ERRORS)
