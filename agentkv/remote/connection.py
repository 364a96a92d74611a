"""Requests to one server, over a pool of connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from pydantic_core import from_json, to_json

from .errors import garbled, refusal, unreachable

_JSON = {"content-type": "application/json"}
_MOST_EVENT_BYTES = 1 << 26


class Connection:
    """One server. Everything raises AgentKVError, or Busy for what can be asked again."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.host = http.base_url.netloc.decode()

    async def get(self, path: str) -> Any:
        """The JSON at a path."""
        return await self._json("GET", path, None)

    async def post(self, path: str, body: Any) -> Any:
        """The JSON that a request is answered with."""
        return await self._json("POST", path, to_json(body))

    async def post_beside(self, path: str, body: Any) -> Any:
        """The same at a path from the root of the server."""
        return await self._json("POST", str(self._http.base_url.join(path)), to_json(body))

    async def post_for_bytes(self, path: str, body: Any) -> httpx.Response:
        """The whole response."""
        return await self._response("POST", path, to_json(body))

    @asynccontextmanager
    async def events(self, path: str, body: Any) -> AsyncIterator[AsyncIterator[Any]]:
        """The JSON of server-sent events, as they come; those that are not whole are not told."""
        try:
            async with self._http.stream("POST", path, content=to_json(body), headers=_JSON) as response:
                if response.status_code != 200:
                    raise refusal(response, await response.aread())
                yield self._told(response)
        except httpx.TransportError as error:
            raise unreachable(error, self.host) from error

    async def aclose(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

    async def _told(self, response: httpx.Response) -> AsyncIterator[Any]:
        waiting = bytearray()
        async for piece in response.aiter_raw():
            waiting += piece
            *events, rest = bytes(waiting.replace(b"\r\n", b"\n")).split(b"\n\n")
            waiting[:] = rest
            for event in events:
                if (data := _data(event)) is not None and data != b"[DONE]":
                    yield self._parsed(data)
            if len(waiting) > _MOST_EVENT_BYTES:
                raise garbled(self.host, "with an event that does not end")

    async def _json(self, method: str, path: str, content: bytes | None) -> Any:
        return self._parsed((await self._response(method, path, content)).content)

    async def _response(self, method: str, path: str, content: bytes | None) -> httpx.Response:
        try:
            response = await self._http.request(method, path, content=content, headers=_JSON)
        except httpx.TransportError as error:
            raise unreachable(error, self.host) from error
        if response.status_code != 200:
            raise refusal(response, response.content)
        return response

    def _parsed(self, data: bytes) -> Any:
        try:
            return from_json(data)
        except ValueError as error:
            raise garbled(self.host, f"with what is no JSON ({str(error)[:100]})") from error


def _data(event: bytes) -> bytes | None:
    """The data of an event; None where it has none (a comment)."""
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
