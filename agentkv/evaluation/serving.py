"""`agentkv serve` in this process, to run cases over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from .._aio.tasks import FirstErrorGroup
from .._types.extras import needs_extra

with needs_extra("serve"):
    from ..serve.app import application
    from ..serve.http.listener import bind_socket, listener
    from ..serve.settings import Settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from .._context.context import Context


@asynccontextmanager
async def served(context: Context, call_threshold: float | None = None) -> AsyncIterator[str]:
    """Serves a Context for the length of a block; yields the URL."""
    settings = Settings(names=("model",), any_name=True, call_threshold=call_threshold)
    async with listening(application(context, settings)) as url:
        yield url


@asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[str]:
    """Serves an application on a free port for the length of a block; yields the URL of its `/v1`."""
    with bind_socket("127.0.0.1", 0) as sock:
        http = listener(app)
        async with FirstErrorGroup() as group:
            group.start_soon(http.serve, [sock])
            try:
                yield f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
            finally:
                http.should_exit = True
