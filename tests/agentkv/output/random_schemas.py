"""Random JSON schemas that some value satisfies: nesting, bounds, patterns, unions, recursion, keys of one's own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

PATTERNS = ("^[a-c]{2,4}$", "^(ab|cd)+$", "^[A-Z][a-z]{0,5}$", "x", "^\\d{3}-\\d{2}$", "^[^a-z]{1,3}$", "^a.b$")
FORMATS = ("date", "time", "date-time", "ipv4", "uuid", "email", "hostname")
WORDS = ("red", "green", "blue", 'a "b"', "caf\u00e9", "\U0001f600", "", "new\nline")
KEYS = ("a", "b", "name", "value", "x-1", "d\u00e9j\u00e0", 'with "quotes"', "zz")


def random_schema(rng: random.Random, depth: int = 3) -> Schema:
    """A schema with at most so many levels below it. Strings and arrays of most are short, so that values end."""
    if depth and rng.random() < 0.1:
        return _recursive(rng, depth)
    return _any_schema(rng, depth)


def _any_schema(rng: random.Random, depth: int) -> Schema:
    leaves: list[Callable[[random.Random, int], Schema]] = [_integer, _number, _string, _word, _simple, _enum, _pattern]
    inner: list[Callable[[random.Random, int], Schema]] = [_array, _tuple, _object, _object, _map, _union, _both]
    kinds = inner * 2 + leaves if depth else leaves
    return rng.choice(kinds)(rng, depth)


def _integer(rng: random.Random, _: int) -> Schema:
    low = rng.randint(-50, 50)
    schema: Schema = {"type": "integer"}
    schema[rng.choice(["minimum", "exclusiveMinimum"])] = low
    schema[rng.choice(["maximum", "exclusiveMaximum"])] = low + rng.choice([2, 5, 30, 1000])
    if rng.random() < 0.2:
        schema = {"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": rng.choice([2, 3, 7, 10])}
    return schema


def _number(rng: random.Random, _: int) -> Schema:
    if rng.random() < 0.2:
        return {"type": "number", "minimum": 0, "maximum": 20, "multipleOf": rng.choice([0.5, 0.25, 0.1])}
    low = round(rng.uniform(-5, 5), rng.randint(0, 3))
    bounds = [{}, {"minimum": low}, {"exclusiveMaximum": low}, {"minimum": low, "exclusiveMaximum": low + 1.25}]
    return {"type": "number", **rng.choice(bounds)}


def _string(rng: random.Random, _: int) -> Schema:
    least = rng.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + rng.choice([0, 1, 4, 8])}


def _word(rng: random.Random, _: int) -> Schema:
    return {"type": "string", "format": rng.choice(FORMATS)}


def _pattern(rng: random.Random, _: int) -> Schema:
    return {"type": "string", "pattern": rng.choice(PATTERNS), "maxLength": 12}


def _simple(rng: random.Random, _: int) -> Schema:
    return rng.choice([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}, {"const": "fixed"}])


def _enum(rng: random.Random, _: int) -> Schema:
    values = [*WORDS, 0, -7, 2.5, True, None, [], [1, "x"], {"k": 1, "l": [None]}]
    return {"enum": rng.sample(values, rng.randint(1, 5))}


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 2)
    return {
        "type": "array",
        "items": _any_schema(rng, depth - 1),
        "minItems": least,
        "maxItems": least + rng.randint(0, 3),
    }


def _tuple(rng: random.Random, depth: int) -> Schema:
    first = [_any_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    rest = rng.choice([False, {"type": "integer", "minimum": 0, "maximum": 9}])
    return {"type": "array", "prefixItems": first, "items": rest, "minItems": rng.randint(0, len(first)), "maxItems": 4}


def _object(rng: random.Random, depth: int) -> Schema:
    keys = rng.sample(KEYS, rng.randint(1, 4))
    schema: Schema = {
        "type": "object",
        "properties": {key: _any_schema(rng, depth - 1) for key in keys},
        "required": [key for key in keys if rng.random() < 0.6],
    }
    if rng.random() < 0.7:
        schema["additionalProperties"] = rng.choice([False, {"type": "boolean"}])
    return schema


def _map(rng: random.Random, depth: int) -> Schema:
    values = _any_schema(rng, depth - 1)
    named = {"patternProperties": {"^[a-f]{1,3}$": values}, "additionalProperties": False}
    schema: Schema = {"type": "object", **rng.choice([{"additionalProperties": values}, named])}
    return {**schema, "minProperties": rng.randint(0, 1), "maxProperties": rng.randint(1, 3)}


def _union(rng: random.Random, depth: int) -> Schema:
    if rng.random() < 0.5:
        return {"anyOf": [_any_schema(rng, depth - 1) for _ in range(rng.randint(2, 3))]}
    return {"oneOf": [_integer(rng, 0), _string(rng, 0), {"type": "boolean"}, {"type": "array", "maxItems": 0}]}


def _both(rng: random.Random, _: int) -> Schema:
    first = {"properties": {"p": {"type": "integer", "minimum": 0}}, "required": ["p"]}
    second = {"properties": {"p": {"maximum": 9}, "q": _string(rng, 0)}, "required": ["q"]}
    return {"type": "object", "allOf": [first, second], "additionalProperties": True, "maxProperties": 2}


def _recursive(rng: random.Random, depth: int) -> Schema:
    kids = {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}
    node: Schema = {
        "type": "object",
        "properties": {"value": _any_schema(rng, depth - 1), "kids": kids},
        "required": ["value", "kids"] if rng.random() < 0.5 else ["value"],
        "additionalProperties": False,
    }
    if rng.random() < 0.5:
        node["properties"]["next"] = {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
    return {"$defs": {"node": node}, "$ref": "#/$defs/node"}
