"""Outputs that are asked for in a wrong way: the error says what to pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from agentkv_runtime.text.tokenizer import Tokenizer
from pydantic import BaseModel

import agentkv as kv
from agentkv.output._compiler import ConstraintCompiler
from agentkv.output._spec import output_spec


class Person(BaseModel):
    age: int


@dataclass
class Point:
    x: int


class Opaque:
    pass


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (Person(age=1), "must be a type; pass Person itself"),
        (Point(1), "must be a type; pass Point itself"),
        (kv.Regex, r"output is the class Regex, .*call it: Regex\(\.\.\.\)"),
        (Opaque, "output is the type Opaque, of which pydantic makes no JSON: .*Opaque'>; pass a pydantic model"),
    ],
)
def test_what_is_no_type_of_an_output(output: Any, said: str) -> None:
    with pytest.raises(kv.InvalidInput, match=said):
        output_spec(output)


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [("([", "unclosed character class"), (r"(a)\1", "backreferences are not supported"), (r"a\b", "lookarounds not")],
)
def test_a_pattern_is_refused_in_one_line(pattern: str, fault: str) -> None:
    with pytest.raises(kv.InvalidInput, match=f"cannot be made a grammar: {fault}[^|^]*$"):
        kv.Regex(pattern)


def test_a_schema_is_no_type_and_one_of_has_a_way_out() -> None:
    with pytest.raises(kv.InvalidInput, match=r"schema is the type Person, .* pass the type as output"):
        kv.JsonSchema(Person)  # type: ignore[arg-type]
    with pytest.raises(kv.InvalidInput, match=r"oneOf constraints are not supported\. Use anyOf; take that out"):
        kv.JsonSchema({"oneOf": [{"type": "integer"}, {"type": "number"}]})


@pytest.mark.parametrize("lark", ["start = 'a'", 'root ::= "a"', "start: nowhere"])
def test_another_kind_of_grammar_learns_which_one_it_is(lark: str) -> None:
    tokenizer = Tokenizer.from_folder(kv.models.nano())
    with pytest.raises(kv.InvalidInput, match=r"is no grammar: (.|\n)*variant of Lark$"):
        ConstraintCompiler(tokenizer, tokenizer.vocab_size).compile(kv.Grammar(lark))
