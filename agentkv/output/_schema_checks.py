"""What a grammar cannot hold of a JSON schema, found before anything is generated, each with the keyword's name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ._refusal import refusal
from ._subschemas import subschemas

_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const", "enum")
_LARGEST_EXACT = 2**53
# The keyword that llguidance's words are about, where they do not name it.
_KEYWORDS = {
    "Unknown format": "format",
    "regex": "pattern",
    "Resource ": "$ref",
    "Pointer ": "$ref",
    "integer range": "minimum or maximum",
    "float range": "minimum or maximum",
    "Invalid type": "type",
}


def refused_keyword(grammar: str) -> str | None:
    """What llguidance refuses of a schema's grammar; None where it takes it."""
    reason = refusal(grammar)
    if reason is None:
        return None
    keyword = next((keyword for words, keyword in _KEYWORDS.items() if words in reason), None)
    return f"{keyword}: {reason}" if keyword else reason


def inexact_number(schema: dict[str, Any]) -> str | None:
    """A number that llguidance would round, because it computes with doubles."""
    for inner in subschemas(schema):
        for key in _NUMBERS:
            for number in _integers(inner.get(key)):
                if abs(number) > _LARGEST_EXACT:
                    return f"{key} has {number}, but integers are exact from -2**53 to 2**53 only"
    return None


def repeatable_keys(schema: dict[str, Any]) -> str | None:
    """A `minProperties` that counts keys which the grammar lets come twice: those that the schema does not list."""
    for inner in subschemas(schema):
        least = inner.get("minProperties", 0)
        if isinstance(least, int) and least > len(_strings(inner, "properties") | _strings(inner, "required")) + 1:
            return f"minProperties is {least}, but keys that `properties` does not list may repeat"
    return None


def _strings(schema: dict[str, Any], key: str) -> set[str]:
    value = schema.get(key)  # anything: what llguidance refuses is said later
    return {item for item in value if isinstance(item, str)} if isinstance(value, list | dict) else set()


def _integers(value: object) -> Iterator[int]:
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _integers(item)
