"""A connection to a server, for the length of an `async with` block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from .._errors import InvalidInput
from .._inputs import Prompt
from .._messages import checked_tools
from .._shown import shown
from ..remote.connecting import CONNECT_S, checked_key, checked_url
from ._branch import RemoteBranch
from ._settling import last_moments, settled
from ._told import WHOLE
from ._values import prompt_told
from ._wire import Wire


class Connection:
    """As much of a `kv.Context` as a server gives its clients. Made by `connect`."""

    def __init__(self, wire: Wire) -> None:
        """Private: use `connect`."""
        self._wire = wire

    def __repr__(self) -> str:
        return f"<Connection to {self._wire.url}: {len(self._wire.live)} branches>"

    async def branch(
        self,
        prompt: Prompt | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> RemoteBranch:
        """As `kv.Context.branch`."""
        given = {} if prompt is None else prompt_told(prompt)
        body = given | {"tools": checked_tools(tools), "template": template}

        async def made() -> RemoteBranch:
            return RemoteBranch(self._wire, await self._wire.post("/v1/branches", body, WHOLE))

        return await settled(made, RemoteBranch.close)


@asynccontextmanager
async def connect(url: str, api_key: str | None = None) -> AsyncIterator[Connection]:
    """Connects to a server that `agentkv serve` runs; leaving the block closes the branches that were made in it.

    Args:
        url: such as "http://127.0.0.1:8080", with or without "/v1".
        api_key: what the server asks for.

    Raises InvalidInput for what is no URL or no key.
    """
    async with _client(url, api_key) as http:
        wire = Wire(http)
        try:
            yield Connection(wire)
        finally:
            for branch in list(wire.live):
                wire.close(branch)
            with last_moments():
                await wire.flush()


def _client(url: str, api_key: str | None) -> httpx.AsyncClient:
    if not isinstance(url, str):
        raise InvalidInput(f"url is {shown(url)}, but it must be a str such as 'http://127.0.0.1:8080'")
    root = checked_url(url).removesuffix("/").removesuffix("/v1")
    key = checked_key(api_key)
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        return httpx.AsyncClient(base_url=root, headers=headers, timeout=httpx.Timeout(None, connect=CONNECT_S))
    except Exception as error:  # whatever it is, the environment says it
        raise InvalidInput(
            f"no connection to {root} can be set up: {error}; look at HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY and "
            "SSL_CERT_FILE in the environment"
        ) from error
