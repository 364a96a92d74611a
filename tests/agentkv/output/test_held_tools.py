"""Tools of which one has a schema that no grammar holds: in every call format, the others are held as they are."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest
from agentkv_runtime.formats import FAMILIES, Format

from agentkv.output._schema_checks import refusal
from agentkv.output._tool_schemas import held_tools, say_loosened

from .odd_schemas import odd_schema

FORMS = [family.fit({}) for family in FAMILIES.values() if family.calls]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ODD = {"type": "object", "properties": {"when": {"type": "string", "not": {}}, "n": {"type": "integer"}}}


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


def parameters_of(tools: Any) -> list[Any]:
    return [tool["function"]["parameters"] for tool in tools]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_one_odd_tool_stops_no_other(form: Format) -> None:
    said: list[Any] = []
    made = held_tools(form, [tool("weather", CITY), tool("odd", ODD)], lambda *what: said.append(what))
    assert said == [("odd", ("not",))]
    first, second = parameters_of(made)
    assert first.items() >= CITY.items()
    assert second["properties"] == {"when": {"type": "string"}, "n": {"type": "integer"}}
    for choice in ("auto", "required", "odd"):
        assert refusal(form.grammar(made, choice=choice)) is None


@pytest.mark.parametrize(
    ("given", "held"),
    [
        (None, {"properties": {}, "additionalProperties": False}),
        ({}, {"properties": {}, "additionalProperties": False}),
        ({"type": "string"}, {"additionalProperties": False}),
        ({"properties": {"a": {"type": "integer"}}}, {"additionalProperties": False}),
        ({"type": ["object", "null"], "properties": {}}, {"properties": {}}),
        ({"anyOf": [CITY, ODD]}, {}),
        ({"$ref": "#/$defs/a", "$defs": {"a": CITY}}, {"$ref": "#/$defs/a"}),
        ({"$ref": "#/$defs/a"}, {"additionalProperties": True}),
        ({"properties": {"a": {"enum": ["x" * 200_000]}}, "not": {}}, {"additionalProperties": True}),
    ],
)
def test_arguments_are_an_object(given: Any, held: dict[str, Any]) -> None:
    (made,) = parameters_of(held_tools(FORMS[0], [tool("f", given)], lambda *_: None))
    assert made.items() >= ({"type": "object"} | held).items()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_any_tool_has_calls_in_any_format(form: Format) -> None:
    for seed in range(20):
        given = tool("f", odd_schema(random.Random(seed)))
        made = held_tools(form, [given], lambda *_: None)
        assert refusal(form.grammar(made)) is None, seed
        call = form.write("", [("f", {"a": "1", "b": "[2]", "city": "null"})])
        assert [call.name for call in form.parse(call, tools=[given]).calls] == ["f"], seed


def test_it_is_said_once_for_each_tool(caplog: pytest.LogCaptureFixture) -> None:
    say_loosened.cache_clear()
    with caplog.at_level(logging.INFO, "agentkv"):
        for _ in range(3):
            held_tools(FORMS[0], [tool("odd", ODD), tool("other", ODD)], say_loosened)
    assert ["'odd'" in record.getMessage() for record in caplog.records] == [True, False]
