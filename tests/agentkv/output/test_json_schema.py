"""JSON schemas as outputs: what their grammars accept and reject, and what is refused beforehand."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import jsonschema
import pytest

import agentkv as kv

from .matching import accepts

POINT = {"properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}, "required": ["x"], "type": "object"}
CLOSED = {**POINT, "additionalProperties": False}
LIST = {"$defs": {"list": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/pair"}]}, "pair": {}}, "$ref": "#/$defs/list"}
LIST["$defs"]["pair"] = {  # type: ignore[index]
    "type": "array",
    "prefixItems": [{"type": "integer"}, {"$ref": "#/$defs/list"}],
    "items": False,
    "minItems": 2,
}

# A schema, values that are of it, values that are not. All are written as `json.dumps` writes them.
CASES: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "anything": ({}, [None, 1, 1.5, "a", [1, {"a": []}], {"k": {"l": None}}], []),
    "null": ({"type": "null"}, [None], [0, False, "", [], {}]),
    "boolean": ({"type": "boolean"}, [True, False], [0, 1, "true", None]),
    "integer": ({"type": "integer"}, [0, -3, 12345678901234567890], [1.5, "1", True, None]),
    "number": ({"type": "number"}, [0, -3, 1.5, 1e30, -2.5e-8], ["1.5", None, True]),
    "string": ({"type": "string"}, ["", "a", 'quote "', "back \\", "line\n", "\u00e9\U0001f600"], [1, None, ["a"]]),
    "types": ({"type": ["integer", "null"]}, [1, None], ["1", 1.5, True]),
    "minimum": ({"type": "integer", "minimum": -2}, [-2, 0, 7], [-3, -100]),
    "exclusiveMinimum": ({"type": "number", "exclusiveMinimum": 1.5}, [1.51, 2], [1.5, 1, -8]),
    "maximum": ({"type": "number", "maximum": 10}, [10, 9.99, -1000], [10.01, 11]),
    "exclusiveMaximum": ({"type": "integer", "exclusiveMaximum": 10}, [9, -50], [10, 11]),
    "both bounds": ({"type": "integer", "minimum": 98, "maximum": 102}, [98, 100, 102], [97, 103, 9, 1000]),
    "multipleOf": ({"type": "integer", "multipleOf": 7}, [0, 7, -14, 77], [1, 8, 76]),
    "multipleOf decimal": ({"type": "number", "multipleOf": 0.25}, [0.25, -1.75, 3], [0.3, 1.26]),
    "minLength": ({"type": "string", "minLength": 2}, ["ab", "\U0001f600\U0001f600", "\n\n"], ["", "a", "\U0001f600"]),
    "maxLength": ({"type": "string", "maxLength": 2}, ["", "ab", "\U0001f600\U0001f600"], ["abc"]),
    "pattern is searched": ({"type": "string", "pattern": "b+"}, ["b", "abbc"], ["", "ac"]),
    "pattern with ends": ({"type": "string", "pattern": "^a[0-9]+$"}, ["a1", "a123"], ["a", "xa1", "a1x"]),
    "pattern and length": ({"type": "string", "pattern": "^a*$", "maxLength": 2}, ["", "aa"], ["aaa", "b"]),
    "format date": ({"type": "string", "format": "date"}, ["2026-11-22"], ["2026-13-01", "2026-1-1", "x"]),
    "format uuid": ({"format": "uuid", "type": "string"}, ["2eb8aa08-aa98-11ea-b4aa-73b441d16380"], ["2eb8aa08"]),
    "format ipv4": ({"type": "string", "format": "ipv4"}, ["192.168.0.1"], ["192.168.0.256", "1.2.3"]),
    "const": ({"const": {"a": [1, None]}}, [{"a": [1, None]}], [{"a": [1]}, {"a": [1, None], "b": 1}, 1]),
    "enum": ({"enum": ["red", 2, None, 0.5, [1]]}, ["red", 2, None, 0.5, [1]], ["blue", 1, False, [], 0.25]),
    "items": ({"type": "array", "items": {"type": "integer"}}, [[], [1], [1, 2, 3]], [["a"], [1, "a"], 1]),
    "minItems": ({"type": "array", "minItems": 2}, [[1, "a"], [1, 2, 3]], [[], [1]]),
    "maxItems": ({"type": "array", "maxItems": 2}, [[], [1, 2]], [[1, 2, 3]]),
    "prefixItems": (
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": {"type": "null"}},
        [[], [1], [1, "a"], [1, "a", None]],
        [["a"], [1, 2], [1, "a", 2]],
    ),
    "properties": (POINT, [{"x": 1}, {"x": 1, "y": 2}, {"x": 1, "z": "own"}], [{}, {"y": 2}, {"x": "1"}, []]),
    "additionalProperties false": (CLOSED, [{"x": 1}, {"x": 1, "y": 2}], [{"x": 1, "z": 3}, {}]),
    "additionalProperties": (
        {"type": "object", "properties": {"x": {}}, "additionalProperties": {"type": "integer"}},
        [{}, {"x": "any"}, {"x": 1, "z": 3}, {"z": 3}],
        [{"z": "a"}, {"x": 1, "z": None}],
    ),
    "patternProperties": (
        {"type": "object", "patternProperties": {"^n_": {"type": "number"}}, "additionalProperties": False},
        [{}, {"n_a": 1}, {"n_a": 1, "n_b": 2.5}],
        [{"n_a": "1"}, {"a": 1}],
    ),
    "required": ({"type": "object", "required": ["k"]}, [{"k": None}, {"k": 1, "l": 2}], [{}, {"l": 1}]),
    "minProperties": ({"type": "object", "minProperties": 1}, [{"a": 1}, {"a": 1, "b": 2}], [{}]),
    "maxProperties": ({"type": "object", "maxProperties": 1}, [{}, {"a": 1}], [{"a": 1, "b": 2}]),
    "anyOf": ({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]}, [1, "a"], [1.5, "ab", None]),
    "oneOf of other types": ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [1.5, None]),
    "oneOf by a tag": (
        {"oneOf": [{**CLOSED, "properties": {"x": {"const": i}}} for i in ("a", "b")]},
        [{"x": "a"}, {"x": "b"}],
        [{"x": "c"}, {}],
    ),
    "allOf": ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, [3, 4, 5], [2, 6, "4"]),
    "keywords beside anyOf": ({"anyOf": [{"minimum": 5}, {"maximum": 2}], "type": "integer"}, [1, 6], [3, 4, "a"]),
    "recursion": (LIST, [None, [1, None], [1, [2, None]]], [1, [1], [1, [2]], [1, None, 2]]),
    "root reference": (
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False},
        [{}, {"next": {}}, {"next": {"next": {}}}],
        [{"next": 1}, {"other": {}}],
    ),
    "annotations": ({"title": "t", "description": "d", "default": 1, "examples": [2], "my-own": 3}, [None, 5], []),
    "names with quotes": (
        {"type": "object", "properties": {'a "b"\n\u00e9': {"type": "null"}}, "additionalProperties": False},
        [{}, {'a "b"\n\u00e9': None}],
        [{"a": None}],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_grammar_accepts_is_what_its_schema_describes(case: str) -> None:
    schema, valid, invalid = CASES[case]
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    assert [value for value in valid if not validator.is_valid(value)] == []  # the case itself is right
    assert [value for value in invalid if validator.is_valid(value)] == []
    output = kv.JsonSchema(schema)
    for value in valid:
        text = json.dumps(value, ensure_ascii=False).replace("1e+30", "1e30")
        assert accepts(output.grammar, text), text
        assert output.read(text) == value
    for value in invalid:
        assert not accepts(output.grammar, json.dumps(value, ensure_ascii=False)), value


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"not": {"type": "string"}}, "not"),
    ({"if": {"type": "string"}, "then": {"minLength": 1}}, "if"),
    ({"type": "array", "contains": {"type": "integer"}}, "contains"),
    ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"type": "object", "properties": {"deep": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ({"type": "string", "format": "iri"}, "format.*iri"),
    ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
    ({"type": "object", "minProperties": 2}, "minProperties"),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 2}, "minProperties|maxProperties"),
    ({"$ref": "https://example.org/other.json"}, r"\$ref"),
    ({"$ref": "#/$defs/missing"}, r"\$ref"),
    ({"type": "text"}, "type"),
    ({"const": 2**53 + 1}, "const has 9007199254740993"),
    ({"enum": [1, {"a": [10**30]}]}, "enum has 1000000000000000000000000000000"),
    ({"type": "integer", "minimum": 10**20}, "minimum has 100000000000000000000"),
    ({"type": "string", "minLength": 5, "maxLength": 3}, "minLength"),
]


PAIR = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
NODE = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
ENDLESS: list[dict[str, Any]] = [
    {"$ref": "#"},
    {"$defs": PAIR, "$ref": "#/$defs/a"},
    {"$defs": PAIR, "type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}},
    NODE,
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    {"type": "array", "prefixItems": [{"type": "null"}, {"$ref": "#"}], "minItems": 2},
    {"anyOf": [{"$ref": "#/anyOf/1"}, {"$ref": "#/anyOf/0"}]},
]
ENDING: list[dict[str, Any]] = [
    LIST,
    {**NODE, "required": []},
    {**NODE, "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
    {"type": "array", "items": {"$ref": "#"}},
    {"$defs": {"a": {"$ref": "#/$defs/a~1b"}, "a/b": {"type": "null"}}, "$ref": "#/$defs/a"},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "object", "required": 5, "properties": []}}},
]


@pytest.mark.parametrize("schema", ENDLESS, ids=str)
def test_values_that_never_end_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(kv.InvalidInput, match=r"\$ref: #.* never end"):
        kv.JsonSchema(schema)


@pytest.mark.parametrize("schema", ENDING, ids=str)
def test_values_that_may_end_are_held(schema: dict[str, Any]) -> None:
    kv.JsonSchema(schema)


@pytest.mark.parametrize(("schema", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_a_keyword_that_no_grammar_holds_is_named(schema: dict[str, Any], named: str) -> None:
    with pytest.raises(kv.InvalidInput, match=f"a grammar cannot hold this schema: .*{named}"):
        kv.JsonSchema(schema)


class Unreadable(dict[str, Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("no keys")

    def keys(self) -> Any:
        raise RuntimeError("no keys")


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("value", [None, 5, True, "x", [5], [["a"]], {"a": 5}])
@pytest.mark.parametrize("keyword", ["properties", "required", "x-guidance", "type", "enum", "$defs", "minProperties"])
def test_a_keyword_with_the_wrong_value_is_held_or_refused(keyword: str, value: Any, inside: bool) -> None:
    schema = {"minProperties": 3, keyword: value}
    with contextlib.suppress(kv.InvalidInput):
        kv.JsonSchema({"type": "object", "properties": {"a": schema}} if inside else schema)


def test_a_mapping_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(kv.InvalidInput, match="no keys"):
        kv.JsonSchema(Unreadable(type="integer"))


@pytest.mark.parametrize(
    "schema", [None, False, 5, "{}", [], {"type": object()}, {"const": float("nan")}, {"\ud800": 1}]
)
def test_a_schema_is_json(schema: Any) -> None:
    with pytest.raises(kv.InvalidInput, match="schema is"):
        kv.JsonSchema(schema)
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"items": deep}
    with pytest.raises(kv.InvalidInput, match="JSON"):
        kv.JsonSchema(deep)


def test_white_space_is_one_way_only() -> None:
    grammar = kv.JsonSchema({}).grammar
    assert accepts(grammar, '{"a": [1, 2], "b": {}}')
    for text in ('{"a":1}', '{"a": 1,"b": 2}', '{ "a": 1}', "[1,2]", "[1,  2]", " 1", "1 ", "[\n1]", "[1 ]"):
        assert not accepts(grammar, text), text
    compact = kv.JsonSchema({"x-guidance": {"item_separator": ",", "key_separator": ":"}})
    assert accepts(compact.grammar, '{"a":[1,2]}')
    assert not accepts(compact.grammar, '{"a": [1, 2]}')


def test_the_order_of_keys_is_part_of_a_schema() -> None:
    one, two = ({"type": "object", "properties": {key: {} for key in keys}} for keys in ("ab", "ba"))
    assert kv.JsonSchema(one) != kv.JsonSchema(two)
    assert accepts(kv.JsonSchema(two).grammar, '{"b": 1, "a": 2}')
    assert not accepts(kv.JsonSchema(one).grammar, '{"b": 1, "a": 2}')


def test_a_schema_is_copied_and_hashed_by_its_text() -> None:
    mine: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
    output = kv.JsonSchema(mine)
    mine["items"]["type"] = "string"
    output.schema["items"] = {}
    assert output.schema == {"type": "array", "items": {"type": "integer"}}
    assert {output: 1}[kv.JsonSchema(output.schema)] == 1
    assert kv.JsonSchema(True).schema == {}
