"""A connection to a server, for the length of an `async with` block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpx

from .._errors import AgentKVError
from .._inputs import Prompt
from .._messages import checked_tools
from ._branch import RemoteBranch
from ._values import prompt_told
from ._wire import Wire

_CONNECT_S = 10
_GOODBYE_S = 5


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
        told = await self._wire.post("/v1/branches", given | {"tools": checked_tools(tools), "template": template})
        return RemoteBranch(self._wire, told)


@asynccontextmanager
async def connect(url: str, api_key: str | None = None) -> AsyncIterator[Connection]:
    """Connects to a server that `agentkv serve` runs; leaving the block closes the branches that were made in it.

    Args:
        url: such as "http://127.0.0.1:8080", with or without "/v1".
        api_key: what the server asks for.
    """
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    timeout = httpx.Timeout(None, connect=_CONNECT_S)
    root = url.rstrip("/").removesuffix("/v1")
    async with httpx.AsyncClient(base_url=root, headers=headers, timeout=timeout) as http:
        wire = Wire(http)
        try:
            yield Connection(wire)
        finally:
            for branch in list(wire.live):
                wire.close(branch)
            with anyio.move_on_after(_GOODBYE_S, shield=True), suppress(AgentKVError):
                await wire.flush()
