"""Our own server in this process, to put cases to over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from ..serve.app import application
from ..serve.listener import bound, listener
from ..serve.settings import Settings

if TYPE_CHECKING:
    from .._context import Context


@asynccontextmanager
async def served(context: Context) -> AsyncIterator[str]:
    """The URL of a server of this Context, which is there until the block ends."""
    with bound("127.0.0.1", 0) as sock:
        http = listener(application(context, Settings(names=("model",), any_name=True)))
        async with anyio.create_task_group() as group:
            group.start_soon(http.serve, [sock])
            try:
                yield f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
            finally:
                http.should_exit = True
