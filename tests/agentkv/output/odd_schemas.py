"""Random schemas of tools as makers of tools write them: with keywords that no grammar holds, or with what is no JSON
Schema at all."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from agentkv.output._schema_checks import subschemas

from .random_schemas import Schema, random_schema

# What is put into a part of a schema, whatever that part is.
UNHELD: tuple[Schema, ...] = (
    {"uniqueItems": True},
    {"propertyNames": {"pattern": "^[a-z]"}},
    {"propertyNames": {"enum": ["a", "b"]}},
    {"not": {"const": "x"}},
    {"not": {}},
    {"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"minimum": 3}},
    {"contains": {"type": "integer"}, "minContains": 1, "maxContains": 2},
    {"minProperties": 4},
    {"dependentRequired": {"a": ["b"]}},
    {"dependentSchemas": {"a": {"required": ["b"]}}},
    {"dependencies": {"a": ["b"]}},
    {"unevaluatedProperties": False},
    {"unevaluatedItems": False},
    {"format": "color"},
    {"format": "binary"},
    {"pattern": "^(?=.*a).*$"},
    {"pattern": "(?<!a)b"},
    {"pattern": "^(a+)\\1$"},
    {"patternProperties": {"^(?!x)": {"type": "string"}}, "additionalProperties": False},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"$ref": "#/$defs/nowhere"},
    {"$ref": "https://example.org/schema.json"},
    {"$ref": "#nowhere"},
    {"$ref": "#"},
    {"$dynamicRef": "#node"},
    {"$recursiveRef": "#"},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"type": "integer", "minimum": 3, "maximum": 1},
    {"multipleOf": 1e-300},
    {"maximum": 2**63},
    {"const": 2**70},
    {"const": "\x00"},
    {"enum": ["\x1b[31m"]},
    {"minItems": 3, "maxItems": 1},
    {"minLength": 9, "maxLength": 2},
    {"properties": {"a": False}, "required": ["a"]},
    {"$schema": "http://json-schema.org/draft-07/schema#"},
    {"$schema": "http://json-schema.org/draft-04/schema#", "exclusiveMinimum": True, "minimum": 1},
    {"$schema": "somewhere"},
    {"$id": "https://example.org/other"},
    {"$anchor": "node"},
    {"nullable": True},
    {"x-guidance": {"whitespace_flexible": True}},
    {"discriminator": {"propertyName": "kind"}},
    {"default": None, "examples": [], "deprecated": True, "readOnly": True, "$comment": "of its maker"},
)
# What stands where something else belongs.
MALFORMED: tuple[Schema, ...] = (
    {"required": None},
    {"required": True},
    {"required": ["a", "a", 5]},
    {"properties": {"a": None}},
    {"properties": {"b": "string"}},
    {"properties": {"name": []}},
    {"type": None},
    {"type": "str"},
    {"type": ["string", "none"]},
    {"type": []},
    {"enum": None},
    {"enum": "ab"},
    {"enum": []},
    {"items": None},
    {"items": "string"},
    {"anyOf": None},
    {"anyOf": []},
    {"anyOf": {"type": "string"}},
    {"allOf": [None]},
    {"additionalProperties": None},
    {"additionalProperties": "no"},
    {"minLength": -1},
    {"minLength": "2"},
    {"minimum": "3"},
    {"pattern": 5},
    {"pattern": "["},
    {"format": 5},
    {"multipleOf": 0},
    {"$ref": 5},
    {"$defs": None},
    {"$id": 5},
    {"$schema": 5},
    {"description": 5, "title": None},
    {"x-guidance": 5},
    {"patternProperties": None},
    {"prefixItems": {}},
)


def odd_schema(rng: random.Random) -> Schema:
    """A schema of arguments, with odd things in up to three of its parts."""
    names = rng.sample(["a", "b", "city", "name"], rng.randint(1, 3))
    schema: Schema = {
        "type": "object",
        "properties": {name: random_schema(rng, 2) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
    }
    for name in names:  # definitions of a part are those of the whole
        schema.setdefault("$defs", {}).update(schema["properties"][name].pop("$defs", {}))
    if rng.random() < 0.3:
        schema["additionalProperties"] = rng.choice([False, True])
    parts = list(subschemas(schema))
    for _ in range(rng.randint(1, 3)):
        made = rng.choice(UNHELD if rng.random() < 0.7 else MALFORMED)
        (schema if "$schema" in made else rng.choice(parts)).update(_copied(made))
    return schema


def _copied(value: Any) -> Any:
    """Its own: parts of one schema are changed, not those of the table."""
    copies: dict[type, Callable[[Any], Any]] = {
        dict: lambda value: {key: _copied(item) for key, item in value.items()},
        list: lambda value: [_copied(item) for item in value],
    }
    return copies.get(type(value), lambda value: value)(value)
