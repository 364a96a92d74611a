"""Translates pydantic's errors about a body into errors for clients."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from pydantic import BaseModel

from ..._types.keywords import near_name
from ..._types.show import preview, reason_of
from .errors import ApiError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Path: TypeAlias = tuple[str | int, ...]

_LONGEST = 60  # characters of a part of a name
_MOST_NAMES = 100  # of a client's, that are compared
_FORM = re.compile(r".*\[.*|[A-Z].*|str|int|float|bool", re.DOTALL)  # pydantic's names for members of a union
_NO_OBJECT = ("model_type", "model_attributes_type", "dict_type")  # pydantic names our classes


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
    return max((error for error in errors if error["loc"][:1] == errors[0]["loc"][:1]), key=closeness)


def closeness(error: ErrorDetails) -> tuple[int, bool]:
    """Sort key of the errors of a union's members: the member that a value matches best has the highest."""
    return len(error["loc"]), not error["type"].endswith("_type")


def unsupported(name: str, known: Collection[str]) -> ApiError:
    """Error for a parameter that a server does not know, by its whole name; `known` are those in its place."""
    *_, own = name.split(".")
    near = None if own in known else near_name(own, known)  # another member of a union may have it
    advice = "leave it out" if near is None else f"did you mean {near}?"
    return ApiError("invalid", f"{name} is not supported by this server; {advice}", "unsupported_parameter", name)


def refused_for(error: ErrorDetails, kind: type[BaseModel], value: Any, within: str) -> ApiError:
    """Makes the error for a body of that kind, or for its part `within`; it names the parameter."""
    path = path_of(error, value)
    name = ".".join(filter(None, (within, *map(named, path))))
    known = _names_at(kind, path[:-1])
    if error["type"] == "extra_forbidden":
        return unsupported(name, known)
    if error["type"] == "missing":
        others = [each for each in error["input"] if each not in known] if isinstance(error["input"], dict) else []
        typo = near_name(str(path[-1]), others[:_MOST_NAMES])
        advice = "" if typo is None else f"; did you mean it by {named(typo)}?"
        return ApiError("invalid", f"{name} is missing{advice}", "missing_parameter", name)
    if error["type"] == "union_tag_invalid":
        tag, known = error["ctx"]["tag"], error["ctx"]["expected_tags"]
        told = f"{name} is of the type {preview(tag)}, which this server does not support; it knows {known}"
        return ApiError("invalid", told, "unsupported_parameter", name)
    message = reason_of(error)
    if error["type"] == "too_long":
        message = f"it has {error['ctx']['actual_length']} parts, but at most {error['ctx']['max_length']} are taken"
    if error["type"] in _NO_OBJECT:
        message = "it must be an object"
    return ApiError("invalid", f"{name} is {preview(error['input'])}: {message}", "invalid_value", name)


def _names_at(kind: type[BaseModel], path: Path) -> set[str]:
    """Names of the fields that a body of that kind may have at a path."""
    kinds = {kind}
    for part in path:
        if isinstance(part, str):
            fields = [
                field for each in kinds for name, field in each.model_fields.items() if part in (name, field.alias)
            ]
            kinds = {inner for field in fields for inner in _kinds_in(field.annotation)}
    return {field.alias or name for each in kinds for name, field in each.model_fields.items()}


def _kinds_in(annotation: Any) -> set[type[BaseModel]]:
    """The kinds of objects in a type hint."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {kind for part in get_args(annotation) for kind in _kinds_in(part)}
