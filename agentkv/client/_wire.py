"""Requests to a server, and its errors as the SDK's."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from typing import Any, TypeVar

import anyio
import httpx
from pydantic import TypeAdapter, ValidationError

from .._errors import AgentKVError, BranchClosed, ContextClosed, InvalidInput, RemoteError
from ..remote.errors import error_of, no_way, oddness
from ._told import ANYTHING, EVENTS, FAILURE, WHOLE, Event, Generated, Whole

T = TypeVar("T")

ServerError = RemoteError
_HOST = "the server"
_WHOLE = {"whole": "true"}
_JSON = {"content-type": "application/json"}


class Wire:
    """The verbs of one server's branches."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._closed: set[str] = set()  # branches that the server does not know of yet that they are
        self.live: set[str] = set()  # those that were made here

    @property
    def url(self) -> str:
        """Where the server is."""
        return str(self._http.base_url)

    async def post(self, path: str, body: Mapping[str, Any], shape: TypeAdapter[T]) -> T:
        """Runs a verb. Raises AgentKVError."""
        content = _written(body)
        self._check_open()
        await self.flush()
        return await self._request("POST", path, shape, content=content, params=_WHOLE, headers=_JSON)

    async def show(self, branch: str) -> Whole:
        """All that is known of a branch. Raises AgentKVError."""
        self._check_open()
        return await self._request("GET", f"/v1/branches/{branch}", WHOLE)

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Event]:
        """The events of a generation; the last one is Generated. Raises AgentKVError."""
        content = _written(body)
        self._check_open()
        await self.flush()
        with _ours():
            async with self._http.stream("POST", path, content=content, params=_WHOLE, headers=_JSON) as response:
                if response.status_code != 200:
                    raise _refusal(response.status_code, await response.aread())
                async with aclosing(_events(response)) as events:
                    async for event in events:
                        yield event
                        if isinstance(event, Generated):
                            return
        raise ServerError("the server ended a generation in the middle")

    def close(self, branch: str) -> None:
        """The server is told with the next request."""
        self.live.discard(branch)
        self._closed.add(branch)

    async def flush(self) -> None:
        """Tells the server of branches that were closed; of those that it does not take now, the next time."""
        async with anyio.create_task_group() as group:
            for branch in self._closed:
                group.start_soon(self._tell_later, branch)

    async def tell(self, branch: str) -> None:
        """Tells the server of a branch that was closed. Raises AgentKVError; it is then told later, too."""
        if branch not in self._closed or self._http.is_closed:
            return
        with suppress(BranchClosed):  # it forgot about it before
            await self._request("DELETE", f"/v1/branches/{branch}", ANYTHING)
        self._closed.discard(branch)

    async def _tell_later(self, branch: str) -> None:
        with suppress(AgentKVError):
            await self.tell(branch)

    def _check_open(self) -> None:
        if self._http.is_closed:
            raise ContextClosed("the connection is closed; use branches inside of their `connect` block")

    async def _request(self, method: str, path: str, shape: TypeAdapter[T], **how: Any) -> T:
        with _ours():
            response = await self._http.request(method, path, **how)
        if response.status_code != 200:
            raise _refusal(response.status_code, response.content)
        return _shaped(response.content, shape)


async def _events(response: httpx.Response) -> AsyncGenerator[Event]:
    name = data = ""
    async for line in response.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            data = value
        elif data:
            if name not in EVENTS:
                raise _error(_shaped(data, FAILURE).error)
            event: Event = _shaped(data, EVENTS[name])
            yield event
            name = data = ""


def _written(body: Mapping[str, Any]) -> bytes:
    """A body as JSON. Raises InvalidInput for what has no form there."""
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"an argument cannot go to a server, as JSON does not have it: {error}") from None


def _shaped(data: str | bytes, shape: TypeAdapter[T]) -> T:
    try:
        return shape.validate_json(data)
    except ValidationError as error:
        raise _none_of_ours(oddness(error)) from None


def odd(what: str) -> ServerError:
    """An answer that is none of agentkv's."""
    return _none_of_ours(f"oddly ({what})")


def _none_of_ours(how: str) -> ServerError:
    return ServerError(f"the server answered {how}; is it `agentkv serve`, of this version?")


def _refusal(status: int, body: bytes) -> AgentKVError:
    try:
        said = FAILURE.validate_json(body).error
    except ValidationError:
        return ServerError(f"the server answered with status {status}, and is none of agentkv's", status)
    return _error(said, status)


def _error(said: object, status: int | None = None) -> AgentKVError:
    error = error_of(_HOST, said if isinstance(said, Mapping) else {"message": said}, status)
    # A Context that is closed is the server's, and this connection is not.
    return ServerError(str(error), status) if isinstance(error, ContextClosed) else error


@contextmanager
def _ours() -> Iterator[None]:
    """Errors of the way to the server as the SDK's."""
    try:
        yield
    except AgentKVError:
        raise
    except httpx.HTTPError as error:
        raise ServerError(f"the server cannot be reached: {type(error).__name__}: {error}") from error
    except Exception as error:
        raise no_way(error, _HOST) from error
