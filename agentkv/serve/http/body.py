"""Request bodies: bounded JSON of a known shape."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import anyio
from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from ..._types.show import preview
from .errors import ApiError
from .leniency import checked

if TYPE_CHECKING:
    from starlette.requests import Request

    from ..settings import Settings
    from .ignored import Ignored


BODY_SECONDS = 60.0
_PACKED = {"gzip": 31, "deflate": 15}  # content encodings, and zlib's `wbits` for them
MOST_PARTS = 65536  # entries of lists and objects
MOST_STOPS = 128  # stop strings of a request


class Body(BaseModel):
    """Base of request bodies. Unknown fields are refused, unless they are empty or known to change no answer
    (`ignored`).

    Attributes:
        known_models: what names of models begin with that mean the first model, unless the server is strict.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())
    known_models: ClassVar[str | None] = None


class Reader(Protocol):
    """What bodies are read by: `Server` and `Models`."""

    @property
    def settings(self) -> Settings:
        """Says how large they may be."""

    @property
    def ignored(self) -> Ignored:
        """Says what is left out of them."""


B = TypeVar("B", bound=Body)


async def read_body(server: Reader, request: Request, kind: type[B]) -> B:
    """Reads and checks the body of a request, once: what chooses the model has read it before the endpoint does.

    Raises ApiError for a body that is too large, too slow, no JSON, or not of the shape `kind`.
    """
    body = getattr(request.state, "body", None)
    if not isinstance(body, kind):
        body = request.state.body = await _read_body(server, request, kind)
    return body


async def _read_body(server: Reader, request: Request, kind: type[B]) -> B:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # Pages of other origins can post other types without a CORS preflight.
        raise ApiError("media", "the content-type must be application/json", "unsupported_media_type")
    try:
        with anyio.fail_after(BODY_SECONDS):
            raw = await _read(request, server.settings.most_bytes)
    except TimeoutError:
        raise ApiError("late", f"the body took longer than {BODY_SECONDS:g} s to come", "timeout") from None
    raw = _decoded(raw, request.headers.get("content-encoding", ""), server.settings.most_bytes)
    try:
        value: Any = from_json(raw, allow_inf_nan=False)  # refuses more than 200 levels of nesting
    except ValueError as error:
        raise ApiError("invalid", f"the body is no JSON: {error}", "invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError("invalid", f"the body is {preview(value)}, but it must be an object")
    _check_size(value)
    return checked(kind, value, server.ignored)


async def _read(request: Request, most_bytes: int) -> bytes:
    raw = bytearray()
    async for piece in request.stream():
        raw += piece
        if len(raw) > most_bytes:
            raise ApiError("large", f"the body has more than {most_bytes} bytes", "body_too_large")
    return bytes(raw)


def _decoded(raw: bytes, encoding: str, most_bytes: int) -> bytes:
    """Decompresses a body. Raises ApiError for unknown encodings, invalid data, and more than `most_bytes`."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return raw
    if name not in _PACKED:
        raise ApiError(
            "media",
            f"the content-encoding is {preview(name).removeprefix('str ')}, which this server does not read; send the "
            f"body as it is, or as {' or '.join(_PACKED)}",
            "unsupported_content_encoding",
            headers={"accept-encoding": ", ".join(_PACKED)},
        )
    reader = zlib.decompressobj(_PACKED[name])
    try:
        body = reader.decompress(raw, most_bytes + 1)
    except zlib.error as error:
        raise ApiError("invalid", f"the body is no {name}: {error}", "invalid_encoding") from None
    if len(body) > most_bytes:
        raise ApiError("large", f"the body has more than {most_bytes} bytes once it is unpacked", "body_too_large")
    if not reader.eof or reader.unused_data:
        raise ApiError("invalid", f"the body is not one whole {name}", "invalid_encoding")
    return body


def _check_size(value: dict[str, Any]) -> None:
    """Raises ApiError for a body with too many entries to validate at once. Lists of token ids do not count."""
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
            raise ApiError("large", f"the body has more than {MOST_PARTS} parts; send less at a time", "body_too_large")
        waiting += [part for part in parts if isinstance(part, dict | list)]
