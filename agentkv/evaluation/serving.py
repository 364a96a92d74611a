"""Our own server in this process, to put cases to over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from .._aio.tasks import Together
from ..serve.app import application
from ..serve.http.listener import bound, listener
from ..serve.settings import Settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from .._context.context import Context


@asynccontextmanager
async def served(context: Context, call_threshold: float | None = None) -> AsyncIterator[str]:
    """The URL of a server of this Context, which is there until the block ends."""
    settings = Settings(names=("model",), any_name=True, call_threshold=call_threshold)
    async with listening(application(context, settings)) as url:
        yield url


@asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[str]:
    """The URL of an application's `/v1`, on a free port."""
    with bound("127.0.0.1", 0) as sock:
        http = listener(app)
        async with Together() as group:
            group.start_soon(http.serve, [sock])
            try:
                yield f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
            finally:
                http.should_exit = True
