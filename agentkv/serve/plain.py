"""Endpoints of no protocol: is the server well, what does it do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, Response

if TYPE_CHECKING:
    from starlette.requests import Request

    from .server import Server


async def health(server: Server, request: Request) -> Response:
    """`GET /health`: 200 while requests are taken, 503 once the server stops."""
    draining = server.admission.draining
    return JSONResponse({"status": "stopping" if draining else "ok"}, 503 if draining else 200)


async def metrics(server: Server, request: Request) -> Response:
    """`GET /metrics`: counters in Prometheus' text format."""
    return Response(server.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
