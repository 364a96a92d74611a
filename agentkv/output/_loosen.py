"""Loosening of schemas that no grammar can enforce: keywords are dropped until a grammar can."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from agentkv_runtime.formats.json_style import unwritable_text

from ._repair import well_formed
from ._schema_checks import subschemas
from .json_schema import unheld

_LONGEST = 100_000  # characters of a schema whose parts are examined one by one

# Keywords to drop first; those in neither list come next, in the order written, and those that define a value last.
_FIRST = (
    "$schema",
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
    "multipleOf",
    "minProperties",
    "maxProperties",
)
_LAST = ("required", "oneOf", "anyOf", "allOf", "items", "properties", "enum", "const", "$ref", "type")

# Keywords on "all others", by the keyword that lists the exceptions.
_OTHERS = {
    "properties": "additionalProperties",
    "patternProperties": "additionalProperties",
    "prefixItems": "items",
}

Fault = Callable[[dict[str, Any]], str | None]


def loosened(schema: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The schema as far as a grammar can enforce it, and the keywords that were dropped or weakened.

    Each part loses only the keywords at fault; a `oneOf` whose choices may overlap becomes an `anyOf`. A schema of more
    than 100,000 characters becomes one that allows anything, where a grammar cannot enforce it as it is.
    """
    text, dropped = _loosened(json.dumps(schema))
    return json.loads(text), dropped


@lru_cache(maxsize=1024)
def _loosened(text: str) -> tuple[str, tuple[str, ...]]:
    try:
        schema, dropped = _held(text)
    except RecursionError:  # it is nested more deeply than Python goes
        schema, dropped = {}, tuple(json.loads(text))
    return json.dumps(schema), dropped


def _held(text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    given: dict[str, Any] = json.loads(text)
    if unheld(given) is None:
        return given, ()
    if len(text) > _LONGEST:
        return {}, tuple(given)
    schema, gone = well_formed(given)
    dropped = dict.fromkeys(gone)
    parts = list(subschemas(schema))[::-1]  # inner parts first
    for part in parts:
        dropped |= dict.fromkeys(_cured(part, _fault_alone))
    if unheld(schema) is not None:
        dropped |= dict.fromkeys(_referring(schema, parts))
    dropped |= dict.fromkeys(_cured(schema, unheld))
    return schema, tuple(dropped)


def _cured(schema: dict[str, Any], fault: Fault) -> Iterator[str]:
    """Drops keywords at the top level of a schema until it has no fault; yields those dropped."""
    while schema and fault(schema) is not None:
        keywords = sorted(schema, key=_rank)
        blamed = (name for name in keywords if fault({key: schema[key] for key in schema if key != name}) is None)
        keyword = next(blamed, keywords[0])
        value = schema.pop(keyword)
        if keyword == "oneOf":
            schema.setdefault("anyOf", value)
        schema.pop(_OTHERS.get(keyword, ""), None)
        yield keyword


def _referring(schema: dict[str, Any], parts: list[dict[str, Any]]) -> Iterator[str]:
    """Drops each `$ref` that no grammar can enforce beside those before it: dangling ones, and endless ones."""
    given = [(part, part.pop("$ref")) for part in parts if "$ref" in part]
    for part, reference in given:
        part["$ref"] = reference
        if unheld(schema) is not None:
            del part["$ref"]
            yield "$ref"


def _fault_alone(part: dict[str, Any]) -> str | None:
    """Fault for which no grammar can enforce a part without its references, alone or as a property; None without."""
    alone = _without_references(part)
    return unheld(alone) or unwritable_text({"properties": {"part": alone}})


def _without_references(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_references(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _without_references(value) for key, value in schema.items() if key != "$ref"}


def _rank(keyword: str) -> int:
    if keyword in _FIRST:
        return _FIRST.index(keyword)
    return len(_FIRST) + (1 + _LAST.index(keyword) if keyword in _LAST else 0)
