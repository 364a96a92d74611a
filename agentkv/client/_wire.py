"""Requests to a server, and its errors as the SDK's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx

from .._errors import BranchClosed, ContextClosed, RemoteError
from ..remote.errors import error_of

Told = dict[str, Any]
ServerError = RemoteError


class Wire:
    """The verbs of one server's branches."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._closed: list[str] = []  # branches that the server does not know of yet that they are
        self.live: set[str] = set()  # those that were made here

    @property
    def url(self) -> str:
        """Where the server is."""
        return str(self._http.base_url)

    async def post(self, path: str, body: Mapping[str, Any]) -> Told:
        """Runs a verb. Raises AgentKVError."""
        self._check_open()
        await self.flush()
        return await self._request("POST", path, json=body, params={"whole": "true"})

    async def get(self, path: str) -> Told:
        """All that is known of a branch. Raises AgentKVError."""
        self._check_open()
        return await self._request("GET", path)

    @asynccontextmanager
    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[tuple[str, Told]]]:
        """The events of a generation. Raises AgentKVError, also among them."""
        self._check_open()
        await self.flush()
        try:
            async with self._http.stream("POST", path, json=body, params={"whole": "true"}) as response:
                if response.status_code != 200:
                    raise _error(response.status_code, await response.aread())
                yield _events(response)
        except httpx.HTTPError as error:
            raise _unreachable(error) from error

    def close(self, branch: str) -> None:
        """The server is told with the next request."""
        self.live.discard(branch)
        self._closed.append(branch)

    async def flush(self) -> None:
        """Tells the server of branches that were closed. Raises ServerError."""
        while self._closed:
            with suppress(BranchClosed):  # it forgot about it before
                await self._request("DELETE", f"/v1/branches/{self._closed.pop()}")

    def _check_open(self) -> None:
        if self._http.is_closed:
            raise ContextClosed("the connection is closed; use branches inside of their `connect` block")

    async def _request(self, method: str, path: str, **how: Any) -> Told:
        try:
            response = await self._http.request(method, path, **how)
        except httpx.HTTPError as error:
            raise _unreachable(error) from error
        if response.status_code != 200:
            raise _error(response.status_code, response.content)
        told: Told = response.json()
        return told


async def _events(response: httpx.Response) -> AsyncIterator[tuple[str, Told]]:
    name = ""
    async for line in response.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            told = json.loads(value)
            if "error" in told:
                raise error_of("the server", told["error"])
            yield name, told


def _error(status: int, body: bytes) -> Exception:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return ServerError(f"the server answered with status {status}, and is none of agentkv's", status)
    return error_of("the server", error, status)


def _unreachable(error: httpx.HTTPError) -> ServerError:
    return ServerError(f"the server cannot be reached: {type(error).__name__}: {error}")
