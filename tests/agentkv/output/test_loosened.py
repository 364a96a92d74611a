"""Schemas that no grammar holds lose the keywords that are to blame, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from agentkv.output._loosened import loosened
from agentkv.output._schema_checks import refused_keyword
from agentkv.output.json_schema import grammar_of

CITY = {"type": "string", "minLength": 2}


def thing(**city: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"city": CITY | city}, "required": ["city"]}


@pytest.mark.parametrize(
    ("city", "dropped"),
    [
        ({}, ()),
        ({"propertyNames": {"type": "string"}}, ("propertyNames",)),
        ({"uniqueItems": True, "not": {"const": "x"}}, ("uniqueItems", "not")),
        ({"if": {"const": "x"}, "then": {}, "else": {}}, ("if", "then", "else")),
        ({"format": "color"}, ("format",)),
        ({"pattern": "^(?=a)b"}, ("pattern",)),
    ],
)
def test_what_no_grammar_holds_is_taken_out(city: dict[str, Any], dropped: tuple[str, ...]) -> None:
    loose, out = loosened(thing(**city))
    assert (loose, out) == (thing(), dropped)
    assert refused_keyword(grammar_of(loose)) is None


def test_a_property_of_that_name_stays() -> None:
    schema = {"type": "object", "properties": {"not": CITY, "format": CITY}, "uniqueItems": True}
    loose, out = loosened(schema)
    assert out == ("uniqueItems",)
    assert loose["properties"] == schema["properties"]


def test_a_schema_that_is_none_stays_refused() -> None:
    loose, out = loosened({"required": [5]})
    assert (loose, out) == ({"required": [5]}, ())
