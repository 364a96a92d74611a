"""Style of JSON in grammars: spaced like Python's `json.dumps`, with one spelling for each key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, TypeGuard

__all__ = ["BOUNDED_SPACE", "ONE_SPELLING", "SPACING", "as_meant", "json_style", "unwritable_text"]

SPACING = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
r"""Fixed separators, so that white space cannot grow without end."""
BOUNDED_SPACE = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}"}
"""Bounded white space between values: enough for a line break and the indent of a deeply nested value."""
ONE_SPELLING = {"json_allowed_escapes": 'nrbtf\\"'}
r"""Allowed escapes: no `\u0061` for `a`, and only control characters with an escape of their own."""
_NAMED = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
_VALUES = {"const", "enum", "default", "examples"}
_CLASS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\\\[\]])*\]", re.DOTALL)
_LEAST_FRACTION = 1e-15  # numbers have 15 digits behind the point, see agentkv.output
_WITHOUT_ESCAPE = {*map(chr, range(32)), "\x7f"} - set("\n\r\b\t\f")


def json_style(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Llguidance's options (`x-guidance`) for a schema.

    If an object lists keys and allows others, each key has one spelling: llguidance compares the text of keys, so a
    listed key in another spelling would count as another one.
    """
    return {**SPACING, **(ONE_SPELLING if any(map(_is_open, _mappings(schema))) else {})}


def as_meant(schema: Any, *, named: bool = False) -> Any:
    r"""A schema rewritten so that llguidance interprets it correctly; with `named`, a mapping of names to schemas.

    Llguidance lets `\"` and `\\` through any class of a pattern that has all characters before the space, so NUL is
    removed from classes. It also lets through an excluded whole bound if the other bound is less than 1 away, so an
    inclusive bound, the next number, replaces it.
    """
    if isinstance(schema, list | tuple):
        return [as_meant(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    if named:
        return {name: as_meant(value) for name, value in schema.items()}
    meant = {}
    for key, value in schema.items():
        if key == "patternProperties" and isinstance(value, Mapping):
            value = {_without_nul(name): inner for name, inner in value.items()}
        if key in _VALUES:
            meant[key] = value
        elif key == "pattern" and isinstance(value, str):
            meant[key] = _without_nul(value)
        else:
            meant[key] = as_meant(value, named=key in _NAMED)
    _leave_out_whole(meant, "exclusiveMinimum", ("maximum", "exclusiveMaximum"), "minimum", 1)
    _leave_out_whole(meant, "exclusiveMaximum", ("minimum", "exclusiveMinimum"), "maximum", -1)
    return meant


def _without_nul(pattern: Any) -> Any:
    return _CLASS.sub(_class_without_nul, pattern) if isinstance(pattern, str) else pattern


def _class_without_nul(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith("\\") else rf"[{found[0]}--\x00]"


def _leave_out_whole(schema: dict[str, Any], key: str, others: tuple[str, str], inclusive: str, sign: int) -> None:
    bound, ends = schema.get(key), [schema[other] for other in (*others, inclusive) if other in schema]
    if schema.get("type") == "integer" or not _is_number(bound) or not all(map(_is_number, ends)):
        return
    if bound == int(bound) and any(0 < sign * (schema.get(other, bound) - bound) < 1 for other in others):
        del schema[key]
        least = float(f"{bound + sign * _LEAST_FRACTION * (10 * abs(bound) or 1):.15g}")
        schema[inclusive] = sign * max(sign * least, sign * schema.get(inclusive, least))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < inf


def unwritable_text(schema: Mapping[str, Any]) -> str | None:
    r"""Message about a text in a schema that needs `\u` escapes, which its style lacks; None without one."""
    if "json_allowed_escapes" not in json_style(schema):
        return None
    for inner in _mappings(schema):
        for key in ("const", "enum"):
            if any(_WITHOUT_ESCAPE & set(text) for text in _texts(inner.get(key))):
                return f"{key} has a control character, and an object of the schema may have keys of its own"
    return None


def _is_open(schema: Mapping[str, Any]) -> bool:
    listed = any(schema.get(key) for key in ("properties", "required", "patternProperties"))
    return listed and schema.get("additionalProperties") is not False


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yields all mappings in a schema, as references may point at any of them."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            yield value
        pending += _inside(value)


def _texts(value: Any) -> Iterator[str]:
    """Yields all texts in a value except for keys."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        pending += _inside(value)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []
