"""Requests to one server, over a pool of connections."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from .._types.errors import AgentKVError
from .errors import RetryableError, bad_response, no_way, refusal, schema_mismatch, unreachable

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

MOST_BYTES = 1 << 26  # of an answer, or of an event
_MOST_REFUSAL_BYTES = 1 << 20
_LONGEST = 2000  # characters of an error
_JSON = {"content-type": "application/json"}
_NONE: dict[str, str] = {}
_BROKEN = (httpx.TransportError, httpx.DecodingError)


class ServerConnection:
    """Requests to one server.

    Methods raise AgentKVError, RetryableError for a request that can be retried, and RemoteError for an answer of
    another shape than expected.
    """

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.host = http.base_url.netloc.decode()
        self.url = str(http.base_url)
        self._secret = http.headers.get("authorization", "").removeprefix("Bearer ")
        self._escaped = to_json(self._secret)[1:-1].decode()  # as it appears in JSON text

    async def get(self, path: str, shape: TypeAdapter[T]) -> T:
        """Gets the JSON at a path."""
        return self._shaped((await self._response("GET", path, None))[0], shape)

    async def post(self, path: str, body: Any, shape: TypeAdapter[T]) -> T:
        """Posts a body as JSON, and returns the JSON of the answer."""
        return self._shaped((await self._response("POST", path, to_json(body)))[0], shape)

    async def put(self, path: str, body: Any, key: str, shape: TypeAdapter[T]) -> T:
        """Puts a body as JSON, and returns the JSON of the answer. The idempotency `key` makes repeats harmless."""
        told, _ = await self._response("PUT", path, to_json(body), {"idempotency-key": key})
        return self._shaped(told, shape)

    async def post_beside(self, path: str, body: Any, shape: TypeAdapter[T]) -> T:
        """Posts, as `post` does, to a path from the root of the server."""
        return await self.post(str(self._http.base_url.join(path)), body, shape)

    async def post_for_bytes(self, path: str, body: Any) -> tuple[bytes, httpx.Headers]:
        """Posts a body as JSON, and returns the bytes and the headers of the answer."""
        return await self._response("POST", path, to_json(body))

    @asynccontextmanager
    async def events(self, path: str, body: Any, shape: TypeAdapter[T]) -> AsyncIterator[AsyncIterator[T]]:
        """Posts a body, and yields the JSON of server-sent events as they come, without a truncated last one."""
        async with self._answer("POST", path, to_json(body)) as response:
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise bad_response(self.host, "with no stream of events")
            async with aclosing(self._told(response, shape)) as told:
                yield told

    async def aclose(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str] = _NONE
    ) -> AsyncIterator[httpx.Response]:
        """Opens a response with status 200, its body not read yet. Raises for any other."""
        try:
            async with self._http.stream(method, path, content=content, headers={**_JSON, **headers}) as response:
                if "," in response.headers.get("content-encoding", ""):  # grows a thousandfold with each of them
                    raise bad_response(self.host, "with a body that is packed twice")
                if response.status_code != 200:
                    raise refusal(response, await _body(response, self.host, _MOST_REFUSAL_BYTES))
                yield response
        except _BROKEN as error:  # without it as a cause: its text is as the server wrote it
            raise self.without_key(unreachable(error, self.host, self._http.timeout.read)) from None
        except (AgentKVError, RetryableError) as error:
            raise self.without_key(error) from None
        except Exception as error:  # such as of a proxy's settings
            raise self.without_key(no_way(error, self.host)) from None

    def without_key(self, error: E) -> E:
        """Returns the same error with its message shortened, and the API key masked."""
        said: Exception = error.error if isinstance(error, RetryableError) else error
        said.args = tuple(self._shown(arg) if isinstance(arg, str) else arg for arg in said.args)
        return error

    def _shown(self, text: str) -> str:
        if self._secret:
            text = text.replace(self._secret, "***").replace(self._escaped, "***")
        return text[:_LONGEST]

    async def _response(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str] = _NONE
    ) -> tuple[bytes, httpx.Headers]:
        async with self._answer(method, path, content, headers) as response:
            return await _body(response, self.host, MOST_BYTES), response.headers

    async def _told(self, response: httpx.Response, shape: TypeAdapter[T]) -> AsyncGenerator[T]:
        waiting, searched = bytearray(), 0
        async for piece in response.aiter_bytes():
            waiting += piece.replace(b"\r", b"")
            while (end := waiting.find(b"\n\n", max(searched - 1, 0))) >= 0:
                data = _data(bytes(waiting[:end]))
                del waiting[: end + 2]
                searched = 0
                if data is not None and data != b"[DONE]":
                    yield self._shaped(data, shape)
            searched = len(waiting)
            if searched > MOST_BYTES:
                raise bad_response(self.host, "with an event that does not end")

    def _shaped(self, data: bytes, shape: TypeAdapter[T]) -> T:
        try:
            return shape.validate_json(data)
        except ValidationError as error:
            how = schema_mismatch(error)
        raise self.without_key(bad_response(self.host, how))


async def _body(response: httpx.Response, host: str, most: int) -> bytes:
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > most:
            raise bad_response(host, f"with more than {most:,} bytes")
    return bytes(body)


def _data(event: bytes) -> bytes | None:
    """Data of a server-sent event; None where it has none (a comment)."""
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
