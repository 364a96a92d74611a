"""Casts of arguments that a format writes as bare text to the types of their tool's schema."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["Schemas", "cast_arguments", "schemas_of"]

Schemas = Mapping[str, Mapping[str, Any]]
"""Schemas of parameters, by tool name and parameter name."""


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> Schemas:
    """The schemas of tool definitions, with or without `function` around them."""
    found: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            found[function["name"]] = properties if isinstance(properties, Mapping) else {}
    return found


def cast_arguments(arguments: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments in which texts are cast to the type of their schema, where it is not str and the cast succeeds."""
    return {name: _cast(value, tuple(_types(schemas.get(name)))) for name, value in arguments.items()}


def _cast(value: Any, types: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        for name in types:
            try:
                return _CASTS[name](value)
            except (KeyError, ValueError, OverflowError):
                continue
        return value
    if isinstance(value, list) and types and "array" not in types:  # of a parameter that was written several times
        return [_cast(item, types) if isinstance(item, str) else item for item in value]
    return value


def _types(schema: Any) -> Iterator[str]:
    """Yields the names of the types that a schema allows."""
    if not isinstance(schema, Mapping):
        return
    declared = schema.get("type")
    named = [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
    found = [name for name in named if isinstance(name, str)]
    for key in ("anyOf", "oneOf"):
        for choice in schema.get(key) or []:
            found.extend(_types(choice))
    yield from found
    if schema.get("nullable") and "null" not in found:
        yield "null"


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)  # such as 3.0, which is an integer to JSON Schema
        if not number.is_integer():
            raise
        return int(number)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("JSON has no such number")
    return int(number) if number.is_integer() and "." not in text else number


def _boolean(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]


def _null(text: str) -> None:
    return {"null": None, "None": None}[text.strip()]


def _json(text: str, kind: type) -> Any:
    value = json.loads(text)
    if not isinstance(value, kind):
        raise ValueError("JSON of another type")
    return value


_CASTS: Mapping[str, Callable[[str], Any]] = {
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "null": _null,
    "object": lambda text: _json(text, dict),
    "array": lambda text: _json(text, list),
}
