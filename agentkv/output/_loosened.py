"""Schemas of tools that a grammar cannot hold, made looser until it can."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ._schema_checks import refused_keyword
from ._subschemas import subschemas
from .json_schema import grammar_of

# Keywords that a call can do without: what it says is then checked by whoever runs it.
_DISPENSABLE = (
    "propertyNames",
    "uniqueItems",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "format",
    "pattern",
    "patternProperties",
)


def loosened(schema: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A schema without the keywords that no grammar holds, and these; it may still be one that is refused."""
    text, dropped = _loosened(json.dumps(schema))
    return json.loads(text), dropped


@lru_cache(maxsize=256)
def _loosened(text: str) -> tuple[str, tuple[str, ...]]:
    schema, dropped = json.loads(text), []
    for keyword in _DISPENSABLE:
        fault = refused_keyword(grammar_of(schema))
        if fault is None:
            break
        if keyword.startswith("pattern") if fault.startswith("pattern:") else keyword in fault:
            holders = [inner for inner in subschemas(schema) if keyword in inner]
            for inner in holders:
                del inner[keyword]
            dropped += [keyword] * bool(holders)
    return json.dumps(schema), tuple(dropped)
