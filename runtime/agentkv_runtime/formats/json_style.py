"""How the JSON of a schema is spelled: spaced as Python's `json.dumps` does it, and each key in one way alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["BOUNDED_SPACE", "ONE_SPELLING", "SPACING", "json_style", "unwritable_text"]

SPACING = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
r"""White space cannot run away, and what is between the values is forced."""
BOUNDED_SPACE = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}"}
"""Between two values, where white space is free: a line break and what is before a deeply nested value."""
ONE_SPELLING = {"json_allowed_escapes": 'nrbtf\\"'}
r"""No `\u0061` for `a`, and no control characters but those with an escape of their own."""
_WITHOUT_ESCAPE = {*map(chr, range(32)), "\x7f"} - set("\n\r\b\t\f")


def json_style(schema: Mapping[str, Any]) -> dict[str, Any]:
    """llguidance's options (`x-guidance`) for a schema.

    Where an object lists keys and may have others, those must not be the listed ones in another spelling:
    llguidance compares the text of keys.
    """
    return {**SPACING, **(ONE_SPELLING if any(map(_is_open, _mappings(schema))) else {})}


def unwritable_text(schema: Mapping[str, Any]) -> str | None:
    r"""A text of a schema that only `\u` escapes spell, where its style has none."""
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
    """All mappings in a schema: references may point at any of them."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            yield value
        pending += _inside(value)


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value but its keys, which are written as they are listed."""
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
