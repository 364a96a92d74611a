"""Bodies of requests: bounded, JSON, and of a known shape."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from ..._types.show import shown
from .errors import Refused
from .leniency import checked

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..server import Server


BODY_SECONDS = 60.0
_PACKED = {"gzip": 31, "deflate": 15}  # encodings of bodies, and what zlib calls them
MOST_PARTS = 65536  # entries of lists and objects
MOST_STOPS = 128  # stop strings of a request


class Body(BaseModel):
    """A body. What it does not name is refused, unless it asks for nothing, or is known to change no answer
    (`ignored`)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


B = TypeVar("B", bound=Body)


async def read_body(server: Server, request: Request, kind: type[B]) -> B:
    """The body of a request.

    Raises Refused for one that is too large, comes too slowly, is no JSON, or not what `kind` says.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # Pages of other origins can post anything else without asking.
        raise Refused("media", "the content-type must be application/json", "unsupported_media_type")
    try:
        with anyio.fail_after(BODY_SECONDS):
            raw = await _read(request, server.settings.most_bytes)
    except TimeoutError:
        raise Refused("late", f"the body took longer than {BODY_SECONDS:g} s to come", "timeout") from None
    raw = _decoded(raw, request.headers.get("content-encoding", ""), server.settings.most_bytes)
    try:
        value: Any = from_json(raw, allow_inf_nan=False)  # refuses what is nested more than 200 levels deep
    except ValueError as error:
        raise Refused("invalid", f"the body is no JSON: {error}", "invalid_json") from None
    if not isinstance(value, dict):
        raise Refused("invalid", f"the body is {shown(value)}, but it must be an object")
    _check_size(value)
    return checked(kind, value, server.ignored)


async def _read(request: Request, most_bytes: int) -> bytes:
    raw = bytearray()
    async for piece in request.stream():
        raw += piece
        if len(raw) > most_bytes:
            raise Refused("large", f"the body has more than {most_bytes} bytes", "body_too_large")
    return bytes(raw)


def _decoded(raw: bytes, encoding: str, most_bytes: int) -> bytes:
    """A body as it was before its client packed it."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return raw
    if name not in _PACKED:
        raise Refused(
            "media",
            f"the content-encoding is {shown(name).removeprefix('str ')}, which this server does not read; send the "
            f"body as it is, or as {' or '.join(_PACKED)}",
            "unsupported_content_encoding",
            headers={"accept-encoding": ", ".join(_PACKED)},
        )
    reader = zlib.decompressobj(_PACKED[name])
    try:
        body = reader.decompress(raw, most_bytes + 1)
    except zlib.error as error:
        raise Refused("invalid", f"the body is no {name}: {error}", "invalid_encoding") from None
    if len(body) > most_bytes:
        raise Refused("large", f"the body has more than {most_bytes} bytes once it is unpacked", "body_too_large")
    if not reader.eof or reader.unused_data:
        raise Refused("invalid", f"the body is not one whole {name}", "invalid_encoding")
    return body


def _check_size(value: dict[str, Any]) -> None:
    """Raises Refused for a body of more parts than it can be checked for at once. Token ids do not count."""
    count = 0
    waiting: list[Any] = [value]
    while waiting:
        parts = waiting.pop()
        if isinstance(parts, dict):
            parts = parts.values()
        elif all(type(part) is int for part in parts):
            continue
        count += len(parts)
        if count > MOST_PARTS:
            raise Refused("large", f"the body has more than {MOST_PARTS} parts; send less at a time", "body_too_large")
        waiting += [part for part in parts if isinstance(part, dict | list)]
