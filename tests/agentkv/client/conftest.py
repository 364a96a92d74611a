"""The client talks to the servers of the server's own tests, also through a proxy that breaks what passes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ..remote.faulty_proxy import FaultyProxy, proxied
from ..serve.conftest import Served, anyio_backend, serve, served

__all__ = ["anyio_backend", "proxy", "serve", "served"]


@pytest.fixture
async def proxy(served: Served) -> AsyncIterator[FaultyProxy]:
    """In front of the server."""
    async with proxied(served.url) as proxy:
        yield proxy
