"""Schemas that no grammar holds lose the keywords that are to blame, where they stand, and nothing else.

To add a case, write a row: of CITY what is added to one property, of WHOLE a schema; with what is left of it, and the
keywords of which less is held.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentkv.output._loosen import loosened
from agentkv.output.json_schema import unheld

CITY = {"type": "string", "minLength": 2}
STRING, INTEGER = {"type": "string"}, {"type": "integer"}


def thing(**city: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"city": CITY | city, "n": INTEGER}, "required": ["city"]}


CITIES: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({}, ()),
    ({"propertyNames": {"type": "string"}}, ("propertyNames",)),
    ({"uniqueItems": True, "not": {"const": "x"}}, ("uniqueItems", "not")),
    ({"if": {"const": "x"}, "then": {}, "else": {}}, ("if", "then", "else")),
    ({"contains": {}, "minContains": 1}, ("contains", "minContains")),
    ({"dependentRequired": {}, "unevaluatedProperties": False}, ("dependentRequired", "unevaluatedProperties")),
    ({"format": "color"}, ("format",)),
    ({"pattern": "^(?=a)b"}, ("pattern",)),
    ({"minProperties": 5}, ("minProperties",)),
    ({"maximum": 2**63}, ("maximum",)),
    ({"enum": None}, ("enum",)),
    ({"pattern": 5}, ("pattern",)),
    ({"$ref": "#/nowhere"}, ("$ref",)),
    ({"$ref": "https://example.org/schema"}, ("$ref",)),
    ({"$dynamicRef": "#a"}, ("$dynamicRef",)),
    ({"maxLength": -1}, ("maxLength",)),
    ({"maxLength": 1}, ("minLength",)),
]


@pytest.mark.parametrize(("city", "dropped"), CITIES)
def test_what_no_grammar_holds_is_taken_out(city: dict[str, Any], dropped: tuple[str, ...]) -> None:
    loose, out = loosened(thing(**city))
    left = {key: value for key, value in (CITY | city).items() if key not in dropped}
    assert (loose, out) == ({**thing(), "properties": {"city": left, "n": INTEGER}}, dropped)
    assert unheld(loose) is None


def tree(**node: Any) -> dict[str, Any]:
    kids = {"type": "array", "items": {"$ref": "#/$defs/node"}, **node}
    return {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"kids": kids}}}}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def needed(**properties: Any) -> dict[str, Any]:
    return of(**properties) | {"required": list(properties)}


LOOP = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
DEEP: dict[str, Any] = STRING
for _ in range(200):
    DEEP = of(a=DEEP)

WHOLE: list[tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    (thing() | {"required": None}, of(city=CITY, n=INTEGER), ("required",)),
    (thing() | {"required": [5]}, of(city=CITY, n=INTEGER), ("required",)),
    ({"type": "object", "properties": None}, {"type": "object"}, ("properties",)),
    (of(a=None, b=STRING), of(a=True, b=STRING), ("properties",)),
    (of(properties=None, b=STRING), of(properties=True, b=STRING), ("properties",)),
    (of(a={"type": "str"}, b=STRING), of(a={}, b=STRING), ("type",)),
    # One of two is to blame.
    (of(a=STRING | {"pattern": "^a"}, b={"pattern": "(?!a)"}), of(a=STRING | {"pattern": "^a"}, b={}), ("pattern",)),
    (of(a={"oneOf": [INTEGER, {"type": "number"}]}), of(a={"anyOf": [INTEGER, {"type": "number"}]}), ("oneOf",)),
    (of(a={"oneOf": [INTEGER, STRING]}), of(a={"oneOf": [INTEGER, STRING]}), ()),
    (needed(a={"allOf": [STRING, INTEGER]}), needed(a={}), ("allOf",)),
    (needed(a=INTEGER | {"minimum": 3, "maximum": 1}), needed(a=INTEGER | {"maximum": 1}), ("minimum",)),
    # What is not allowed for others goes with what says which those are.
    (
        of(a={"patternProperties": {"(?=a)": STRING}, "additionalProperties": False}),
        of(a={}),
        ("patternProperties",),
    ),
    # References.
    (tree(), tree(), ()),
    (tree(uniqueItems=True), tree(), ("uniqueItems",)),
    ({"$ref": "#/$defs/a", "$defs": LOOP}, {"$ref": "#/$defs/a", "$defs": {"a": {}, "b": LOOP["b"]}}, ("$ref",)),
    (needed(a={"$ref": "#"}), needed(a={}), ("$ref",)),
    # What only the whole shows: an object that may have keys of its own.
    (of(a={"const": "\x00"}, b=of(c=STRING)), of(a={}, b=of(c=STRING)), ("const",)),
    (DEEP, {}, ("type", "properties")),
    (of(a={"enum": ["x" * 200_000]}, b={"not": {}}), {}, ("type", "properties")),
]


@pytest.mark.parametrize(("schema", "left", "dropped"), WHOLE)
def test_parts_that_can_be_held_are_held(
    schema: dict[str, Any], left: dict[str, Any], dropped: tuple[str, ...]
) -> None:
    loose, out = loosened(schema)
    assert sorted(out) == sorted(dropped)
    assert unheld(loose) is None
    if "$ref" not in dropped or "$defs" not in schema:
        assert loose == left
    else:  # either reference may be the one that closes the ring
        assert json.dumps(loose).count("$ref") == json.dumps(left).count("$ref")


def test_a_property_of_that_name_stays() -> None:
    schema = {"type": "object", "properties": {"not": CITY, "format": CITY}, "uniqueItems": True}
    loose, out = loosened(schema)
    assert out == ("uniqueItems",)
    assert loose["properties"] == schema["properties"]
