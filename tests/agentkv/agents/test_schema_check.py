"""Tools that come with a schema: arguments are checked against it, as far as it is one.

To add a case, write a row: a schema, arguments, and what the model reads of them; nothing where they are taken.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

import agentkv as kv
from agentkv.agents.parameters import InvalidArguments

ROWS: list[tuple[dict[str, Any], Any, str]] = [
    ({"a": {"type": "integer"}}, 1, ""),
    ({"a": {"type": "integer"}}, "x", "a: 'x' is not of type 'integer'"),
    ({"a": {"type": "array", "uniqueItems": True}}, [1, 1], "a: .1, 1. has non-unique elements"),
    ({"a": {"pattern": "^(?=.*b)a"}}, "ac", "a: 'ac' does not match"),
    ({"a": {"not": {"const": "x"}}}, "x", "a: 'x' should not be valid"),
    ({"a": {"propertyNames": {"maxLength": 1}}}, {"bc": 1}, "'bc' is too long"),
    ({"a": {"minProperties": 1}}, {}, "a: "),
    ({"a": {"if": {"const": 1}, "then": False}}, 1, "a: "),
    ({"a": {"format": "date"}}, "soon", "a: 'soon' is not a 'date'"),
    ({"a": {"format": "color"}}, "soon", ""),
    ({"a": {"items": {"type": "integer"}}}, [1, "x"], r"a\[1\]: 'x' is not of type 'integer'"),
    ({"a": {"$ref": "#/properties/b"}, "b": {"type": "integer"}}, "x", "a: 'x' is not of type"),
    # Schemas that are none: the rest of them counts.
    ({"a": {"$ref": "#/nowhere", "type": "integer"}}, "x", "a: 'x' is not of type"),
    ({"a": {"$ref": "https://example.org/schema"}}, "x", ""),
    ({"a": {"$dynamicRef": "#nowhere"}}, "x", ""),
    ({"a": {"$ref": "#/properties/a"}}, "x", ""),
    ({"a": {"required": None, "type": "integer"}}, "x", "a: 'x' is not of type"),
    ({"a": {"pattern": "["}}, "x", ""),
    ({"a": None, "b": {"type": "string"}}, "x", ""),
]


def tool_of(properties: dict[str, Any], **more: Any) -> kv.Tool[Any, ..., Any]:
    return kv.Tool("f", "", {"type": "object", "properties": properties, **more}, lambda **_: None)


@pytest.mark.parametrize(("properties", "value", "said"), ROWS)
def test_arguments_are_checked_against_the_schema(properties: dict[str, Any], value: Any, said: str) -> None:
    tool = tool_of(properties)
    if said:
        with pytest.raises(InvalidArguments, match=said):
            tool.checked({"a": value})
    else:
        assert tool.checked({"a": value}) == {"a": value}


@pytest.mark.parametrize(
    ("draft", "refused"),
    [("http://json-schema.org/draft-04/schema#", True), ("http://json-schema.org/draft-07/schema#", False)],
)
def test_the_schemas_own_draft_counts(draft: str, refused: bool) -> None:
    tool = tool_of({"a": {"type": "number", "minimum": 3, "exclusiveMinimum": True}}, **{"$schema": draft})
    if refused:
        with pytest.raises(InvalidArguments):
            tool.checked({"a": 3})
    else:  # there it is no keyword
        assert tool.checked({"a": 3}) == {"a": 3}


def test_a_fault_is_told_in_a_few_words() -> None:
    tool = tool_of({name: {"type": "integer"} for name in "abcdef"})
    with pytest.raises(InvalidArguments) as caught:
        tool.checked(dict.fromkeys("abcdef", "x" * 5000))
    assert str(caught.value).startswith("a: 'xxx")
    assert len(str(caught.value)) < 1000


def test_what_is_no_schema_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    tool = tool_of({"a": {"required": None}})
    with caplog.at_level(logging.WARNING, "agentkv"):
        for _ in range(3):
            tool.checked({"a": 1})
    (record,) = caplog.records
    assert "required" in record.getMessage()


def test_a_check_of_ones_own_takes_its_place() -> None:
    tool = kv.Tool("f", "", {"type": "object", "properties": {}}, print, check=lambda given: {"made": given["a"]})
    assert tool.checked({"a": 1}) == {"made": 1}
