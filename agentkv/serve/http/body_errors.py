"""What is wrong with a body, and where: pydantic's errors as clients are told them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

from ..._types.show import shown
from .errors import Refused

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Path: TypeAlias = tuple[str | int, ...]

_LONGEST = 60  # characters of a part of a name
_FORM = re.compile(r".*\[.*|[A-Z].*|str|int|float|bool", re.DOTALL)  # of a union, as pydantic names it


def path_of(error: ErrorDetails, value: Any) -> Path:
    """Where in the body it is, without what pydantic calls the forms that a value may have."""
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
    """Is it a form that a value has by its `type`, and no field of that name?"""
    if after is None or not isinstance(value, dict) or value.get("type") != part:
        return False
    return part not in value or after in value


def named(part: object) -> str:
    """A part of a parameter's name as errors show it: clients may have made it up."""
    text = str(part) or "''"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def closest(errors: Sequence[ErrorDetails]) -> ErrorDetails:
    """Of what is wrong with the first parameter, whatever form it may have: the form that it comes closest to."""
    first = [error for error in errors if error["loc"][:1] == errors[0]["loc"][:1]]
    return max(first, key=lambda error: (len(error["loc"]), not error["type"].endswith("_type")))


def refused_for(error: ErrorDetails, value: Any, within: str) -> Refused:
    """The refusal of a body, or of the part `within` it, which names the parameter."""
    name = ".".join(filter(None, (within, *map(named, path_of(error, value)))))
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
