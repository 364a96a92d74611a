"""Walks over JSON schemas: which values inside of one are schemas themselves (JSON Schema 2020-12, section 10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalItems", "additionalProperties")


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and every schema inside of it, as far as they are objects; whoever reads them may change them."""
    pending = [schema]
    while pending:
        schema = pending.pop()
        if not isinstance(schema, dict):
            continue
        yield schema
        pending += [schema.get(key) for key in _SINGLE]
        for key in _LISTS:
            if isinstance(schema.get(key), list):
                pending += schema[key]
        for key in MAPS:
            if isinstance(schema.get(key), dict):
                pending += schema[key].values()
