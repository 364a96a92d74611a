"""Bodies of requests: bounded, JSON, and of a known shape."""

from __future__ import annotations

import re
import zlib
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, from_json

from .._shown import shown
from .refused import Refused

if TYPE_CHECKING:
    from starlette.requests import Request


BODY_SECONDS = 60.0
_PACKED = {"gzip": 31, "deflate": 15}  # encodings of bodies, and what zlib calls them
MOST_PARTS = 65536  # entries of lists and objects
MOST_STOPS = 128  # stop strings of a request
_LONGEST = 60  # characters of a part of a name
_FORM = re.compile(r".*\[.*|[A-Z].*|str|int|float|bool", re.DOTALL)  # of a union, as pydantic names it


class Body(BaseModel):
    """A body. What it does not name is refused: nothing that a client asks for is ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


B = TypeVar("B", bound=Body)


async def read_body(request: Request, kind: type[B], most_bytes: int) -> B:
    """The body of a request.

    Raises Refused for one that is too large, comes too slowly, is no JSON, or not what `kind` says.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # Pages of other origins can post anything else without asking.
        raise Refused("media", "the content-type must be application/json", "unsupported_media_type")
    try:
        with anyio.fail_after(BODY_SECONDS):
            raw = await _read(request, most_bytes)
    except TimeoutError:
        raise Refused("late", f"the body took longer than {BODY_SECONDS:g} s to come", "timeout") from None
    raw = _decoded(raw, request.headers.get("content-encoding", ""), most_bytes)
    try:
        value: Any = from_json(raw, allow_inf_nan=False)  # refuses what is nested more than 200 levels deep
    except ValueError as error:
        raise Refused("invalid", f"the body is no JSON: {error}", "invalid_json") from None
    if not isinstance(value, dict):
        raise Refused("invalid", f"the body is {shown(value)}, but it must be an object")
    _check_size(value)
    return checked(kind, value)


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


def checked(kind: type[B], value: dict[str, Any], within: str = "") -> B:
    """The body that a value is, or a part of one, `within` the parameter of that name. Raises Refused, which names the
    first parameter that is wrong."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _refused(_closest(error.errors(include_url=False)), value, within) from None


def _closest(errors: list[ErrorDetails]) -> ErrorDetails:
    """Of what is wrong with the first parameter, whatever form it may have: the form that it comes closest to."""
    first = [error for error in errors if error["loc"][:1] == errors[0]["loc"][:1]]
    return max(first, key=lambda error: (len(error["loc"]), not error["type"].endswith("_type")))


def _name(error: ErrorDetails, value: Any) -> str:
    """The parameter that it is about, without what pydantic calls the forms that it may have."""
    parts = []
    for part, after in zip_longest(error["loc"], error["loc"][1:]):
        if _is_tag(part, value, after):
            continue
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            if _FORM.fullmatch(str(part)):
                continue
        parts.append(named(part))
    return ".".join(parts)


def _is_tag(part: object, value: Any, after: object) -> bool:
    """Is it a form that a value has by its `type`, and no field of that name?"""
    if after is None or not isinstance(value, dict) or value.get("type") != part:
        return False
    return part not in value or after in value


def named(part: object) -> str:
    """A part of a parameter's name as errors show it: clients may have made it up."""
    text = str(part) or "''"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _refused(error: ErrorDetails, value: dict[str, Any], within: str) -> Refused:
    name = ".".join(filter(None, (within, _name(error, value))))
    if error["type"] == "extra_forbidden":
        return Refused(
            "invalid", f"{name} is not supported by this server; leave it out", "unsupported_parameter", name
        )
    if error["type"] == "missing":
        return Refused("invalid", f"{name} is missing", "missing_parameter", name)
    if error["type"] == "union_tag_invalid":
        tag, known = error["ctx"]["tag"], error["ctx"]["expected_tags"]
        told = f"{name} is of the type {shown(tag)}, which this server does not support; it knows {known}"
        return Refused("invalid", told, "unsupported_parameter", name)
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "too_long":
        message = f"it has {error['ctx']['actual_length']} parts, but at most {error['ctx']['max_length']} are taken"
    return Refused("invalid", f"{name} is {shown(error['input'])}: {message}", "invalid_value", name)
