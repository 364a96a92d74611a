"""Translates pydantic's errors about a body into errors for clients."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

from ..._types.show import preview
from .errors import ApiError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Path: TypeAlias = tuple[str | int, ...]

_LONGEST = 60  # characters of a part of a name
_FORM = re.compile(r".*\[.*|[A-Z].*|str|int|float|bool", re.DOTALL)  # pydantic's names for members of a union


def path_of(error: ErrorDetails, value: Any) -> Path:
    """Path of the error in the body, without pydantic's names for the members of a union."""
    parts = []
    for part, after in zip_longest(error["loc"], error["loc"][1:]):
        if _is_tag(part, value, after):
            continue
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            if _FORM.fullmatch(str(part)):
                continue
        parts.append(part)
    return tuple(parts)


def _is_tag(part: object, value: Any, after: object) -> bool:
    """Returns whether `part` is the `type` of a tagged union and no field of that name."""
    if after is None or not isinstance(value, dict) or value.get("type") != part:
        return False
    return part not in value or after in value


def named(part: object) -> str:
    """A part of a parameter's name for errors, shortened, since clients may have made it up."""
    text = str(part) or "''"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def closest(errors: Sequence[ErrorDetails]) -> ErrorDetails:
    """Selects among the errors of the first parameter the one of the union member that it matches best."""
    first = [error for error in errors if error["loc"][:1] == errors[0]["loc"][:1]]
    return max(first, key=lambda error: (len(error["loc"]), not error["type"].endswith("_type")))


def refused_for(error: ErrorDetails, value: Any, within: str) -> ApiError:
    """Makes the error for a body, or for its part `within`; it names the parameter."""
    name = ".".join(filter(None, (within, *map(named, path_of(error, value)))))
    if error["type"] == "extra_forbidden":
        return ApiError(
            "invalid", f"{name} is not supported by this server; leave it out", "unsupported_parameter", name
        )
    if error["type"] == "missing":
        return ApiError("invalid", f"{name} is missing", "missing_parameter", name)
    if error["type"] == "union_tag_invalid":
        tag, known = error["ctx"]["tag"], error["ctx"]["expected_tags"]
        told = f"{name} is of the type {preview(tag)}, which this server does not support; it knows {known}"
        return ApiError("invalid", told, "unsupported_parameter", name)
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "too_long":
        message = f"it has {error['ctx']['actual_length']} parts, but at most {error['ctx']['max_length']} are taken"
    return ApiError("invalid", f"{name} is {preview(error['input'])}: {message}", "invalid_value", name)
