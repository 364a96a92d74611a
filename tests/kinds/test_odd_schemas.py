"""JSON schemas whose grammars let through what the schema does not describe, or what no client reads.

A row of ESCAPED or OUTSIDE is a schema and a text that it refuses, one of NUMBERS a schema, a text that its mask lets
come and one that it does not, one of WRITTEN what must still be possible. All are walked through the masks that the
step loop draws from, in every call format where `tools` makes one of it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from agentkv_runtime.folder.model_folder import read_model_folder
from agentkv_runtime.formats import FAMILIES
from agentkv_runtime.formats.json_style import as_meant
from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict

import agentkv as kv
from agentkv.output._grammar_matcher import GrammarRule, GrammarState, GrammarVocabulary
from agentkv.output._numbers import NumberTokens, digits_left, most_digits
from tests.agentkv.output.random_schemas import random_schema

BOOL = {"type": "boolean"}
OBJECT = {"type": "object", "properties": {"a": BOOL}}
B = 10**15

ESCAPED: list[tuple[dict[str, Any], str]] = [
    (OBJECT, '{"a": true, "\\u0061": 3}'),
    (OBJECT, '{"\\u0061": 3}'),
    ({**OBJECT, "required": ["a"]}, '{"a": true, "\\u0061": 3}'),
    ({**OBJECT, "additionalProperties": {"type": "integer"}}, '{"\\u0061": 3}'),
    ({**OBJECT, "additionalProperties": True}, '{"\\u0061": 3}'),
    ({"type": "object", "properties": {"a": False}}, '{"\\u0061": 3}'),
    ({"type": "object", "patternProperties": {"^a": BOOL}}, '{"\\u0061": 3}'),
    ({"type": "object", "patternProperties": {"^a": BOOL}, "additionalProperties": {}}, '{"\\u0061b": 3}'),
    ({"type": "object", "properties": {"o": OBJECT}, "additionalProperties": False}, '{"o": {"\\u0061": 3}'),
    ({"type": "array", "items": OBJECT}, '[{"\\u0061": 3}'),
    ({"anyOf": [OBJECT, {"type": "null"}]}, '{"\\u0061": 3}'),
    ({"type": "object", "allOf": [{"properties": {"a": BOOL}}, {"properties": {"b": BOOL}}]}, '{"\\u0061": 3}'),
    ({"$ref": "#/$defs/o", "$defs": {"o": OBJECT}}, '{"\\u0061": 3}'),
    ({"$ref": "#/elsewhere/o", "elsewhere": {"o": OBJECT}}, '{"\\u0061": 3}'),
    ({"type": "object", "properties": {"\u00e9": BOOL}}, '{"\\u00e9": 3}'),
    ({"type": "object", "properties": {"\t": BOOL}}, '{"\\u0009": 3}'),
    ({"type": "object", "properties": {"\U0001f600": BOOL}}, '{"\\ud83d\\ude00": 3}'),
    ({"type": "object", "properties": {"a/b": BOOL}}, '{"a\\/b": 3}'),
    ({"type": "object", "properties": {"a\\b": BOOL}}, '{"a\\\\b": 3}'),
    ({"type": "object", "properties": {"a": {"const": "x"}}}, '{"a": "\\u0079"'),
]
OUTSIDE: list[tuple[dict[str, Any], str]] = [
    # Classes that have all control characters, and bounds that are excluded and whole.
    ({"type": "string", "pattern": '^[^"]+$'}, '"a\\"'),
    ({"type": "string", "pattern": "^[^/\\\\]+$"}, '"a\\\\'),
    ({"type": "string", "pattern": '^([^"\\n]|x)+$'}, '"a\\"'),
    ({"type": "string", "pattern": '^\\[[^"]\\]$'}, '"[\\"'),
    ({"type": "string", "pattern": "^[\\x00-\\x1f]$"}, '"\\"'),
    ({"type": "object", "properties": {"pattern": {"type": "string", "pattern": '^[^"]+$'}}}, '{"pattern": "\\"'),
    ({"type": "object", "patternProperties": {'^[^"]+$': BOOL}, "additionalProperties": False}, '{"a\\"'),
    ({"$ref": "#/$defs/p", "$defs": {"p": {"type": "string", "pattern": '^[^"]+$'}}}, '"a\\"'),
    ({"type": "array", "items": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.1}}, "[0,"),
    ({"type": "array", "items": {"type": "number", "exclusiveMinimum": 165, "exclusiveMaximum": 165.5}}, "[165,"),
    ({"type": "array", "items": {"type": "number", "minimum": 1.75, "exclusiveMaximum": 2.0}}, "[2,"),
    ({"type": "array", "items": {"type": "number", "exclusiveMinimum": -1, "maximum": -0.2}}, "[-1,"),
    ({"type": "number", "exclusiveMinimum": 0, "minimum": 0.5, "maximum": 0.75}, "0.2"),
]
WRITTEN: list[tuple[dict[str, Any], str]] = [
    (OBJECT, '{"a": true, "\u00e9": "line\\n\\"quoted\\""}'),
    ({"type": "object", "properties": {f"p{i}": BOOL for i in range(600)}}, '{"p1": true, "p599": false}'),
    ({"type": "string"}, '"\\u001b[31m"'),
    ({**OBJECT, "additionalProperties": False}, '{"a": true}'),
    ({"const": "\x00"}, '"\\u0000"'),
    ({"enum": [10**15 + 1, 2.5]}, "1000000000000001"),
    ({"const": 0.1234567890123456789}, "0.12345678901234568"),
    ({"type": "integer", "minimum": 2 * B}, "2000000000000000"),
    ({"type": "integer", "minimum": -2 * B, "maximum": 2 * B}, "-1999999999999999"),
    ({"type": "integer", "multipleOf": 4_000_000_000}, "8000000000"),
    ({"type": "number"}, "-6.02214076e23"),
    ({"type": "number"}, "1e-5"),
    ({"type": "string"}, '"' + "1234567890" * 4 + '"'),
    ({"type": "string", "pattern": "^[0-9]+-x$"}, '"' + "1234567890" * 4 + '-x"'),
    ({"type": "string", "pattern": "^[a-z][0-9]{30}$"}, '"q' + "1234567890" * 3 + '"'),
    ({"type": "string", "pattern": '^[^"]+$'}, '"a\\n\\\\b\\u001f"'),
    ({"type": "string", "pattern": "^[\\\\\\]\\[x-]+\\[$"}, '"\\\\]-x[["'),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.1}, "0.05"),
    ({"type": ["integer", "number"], "exclusiveMinimum": -1, "exclusiveMaximum": -0.5}, "-0.75"),
]
NUMBERS: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "integer"}, "9" * 15, "9" * 16),
    ({"type": "integer"}, "-" + "9" * 15, "-" + "9" * 16),
    ({"type": "number"}, "9" * 15, "9" * 16),
    ({"type": "number"}, "0." + "3" * 15, "0." + "3" * 16),
    ({"type": "number"}, "1e99", "1e100"),
    ({"type": "number"}, "1E-99", "1E-100"),
    ({}, "9" * 15, "9" * 16),
    ({"type": "integer", "minimum": 0}, "9" * 15, "9" * 16),
    ({"type": "integer", "maximum": 0}, "-" + "9" * 15, "-" + "9" * 16),
    ({"type": "number", "minimum": 0.5}, "0.5" + "3" * 14, "0.5" + "3" * 15),
    ({"type": "integer", "multipleOf": 3}, "9" * 15, "9" * 16),
    ({"type": ["integer", "null"]}, "9" * 15, "9" * 16),
    ({"type": "array", "items": {"type": "integer"}}, "[1, " + "9" * 15, "[1, " + "9" * 16),
    ({"type": "object"}, '{"n": ' + "9" * 15, '{"n": ' + "9" * 16),
    ({"type": "object"}, '{"n": [[-0.' + "9" * 15, '{"n": [[-0.' + "9" * 16),
    ({"type": "integer", "maximum": 2 * B}, "9" * 15, "3" * 16),
    ({"type": "integer", "minimum": 2 * B}, "2" * 16, "2" * 17),
    ({"allOf": [{"type": "integer"}, {"minimum": 1}]}, "9" * 15, "9" * 16),
]


@cache
def vocabulary() -> GrammarVocabulary:
    folder = read_model_folder(kv.models.nano())
    return GrammarVocabulary(folder.tokenizer, folder.manifest.vocab_size)


def reached(grammar: str, text: str) -> str:
    """How much of a text may come, in whichever tokens, by the masks that are drawn from."""
    rule, spelled = GrammarRule(grammar, vocabulary()), text.encode()
    ways: dict[int, list[int]] = {0: []}
    for at in range(len(spelled)):
        if at not in ways:
            continue
        state = rule.begin()
        assert isinstance(state, GrammarState)
        if ways[at]:
            state.advance(ways[at])
        if state.complete:
            continue
        masks = np.zeros((1, vocabulary().size // 32 + 1), np.uint32)
        state.fill_masks([], [], masks)
        for token in np.flatnonzero(np.unpackbits(masks.view(np.uint8), bitorder="little")).tolist():
            piece = vocabulary().tokens[token]
            if piece and spelled.startswith(piece, at):
                ways.setdefault(at + len(piece), [*ways[at], token])
    return spelled[: max(ways)].decode("utf-8", "replace")


def grammar_of(schema: dict[str, Any]) -> str:
    return kv.JsonSchema(schema).grammar


@pytest.mark.parametrize(("schema", "text"), ESCAPED)
def test_a_listed_key_has_one_spelling(schema: dict[str, Any], text: str) -> None:
    assert reached(grammar_of(schema), text) != text


@pytest.mark.parametrize(("schema", "text"), OUTSIDE)
def test_what_a_schema_leaves_out_cannot_be_written(schema: dict[str, Any], text: str) -> None:
    assert reached(grammar_of(schema), text) != text


@pytest.mark.parametrize(("schema", "text"), WRITTEN)
def test_what_a_schema_describes_can_be_written(schema: dict[str, Any], text: str) -> None:
    assert reached(grammar_of(schema), text) == text
    assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))


@pytest.mark.parametrize(("schema", "least", "most"), NUMBERS)
def test_numbers_end(schema: dict[str, Any], least: str, most: str) -> None:
    assert reached(grammar_of(schema), least) == least
    assert reached(grammar_of(schema), most) != most


@pytest.mark.parametrize(("text", "free"), [('{"a"' + " " * 40 + ": true}", True), ('{"a"' + " " * 41, False)])
def test_white_space_ends_where_a_schema_lets_it_come(text: str, free: bool) -> None:
    flexible = {**OBJECT, "x-guidance": {"whitespace_flexible": True, "key_separator": ":"}}
    assert (reached(grammar_of(flexible), text) == text) is free


def test_values_of_a_schema_are_not_spelled_otherwise() -> None:
    value = {"pattern": "[^x]", "exclusiveMinimum": 0, "maximum": 0.1}
    assert as_meant({"const": value, "properties": {"const": {"pattern": "[^x]"}}}) == {
        "const": value,
        "properties": {"const": {"pattern": r"[[^x]--\x00]"}},
    }


def test_a_control_character_that_no_key_could_be_told_apart_by_is_refused() -> None:
    with pytest.raises(kv.InvalidInput, match="const has a control character"):
        kv.JsonSchema({"type": "object", "properties": {"a": {"const": "\x00"}}})


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: bool


class OpenDict(TypedDict):
    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    a: bool


@pytest.mark.parametrize("kind", [Open, OpenDict, list[Open], dict[str, Open], Open | None])
def test_typed_output_with_keys_of_its_own(kind: Any) -> None:
    from agentkv.output._spec import output_spec

    before = {list[Open]: "[", dict[str, Open]: '{"k": '}.get(kind, "")
    grammar = output_spec(kind).constraint.grammar  # type: ignore[union-attr]
    assert reached(grammar, before + '{"a": true, "b": 1}') == before + '{"a": true, "b": 1}'
    assert reached(grammar, before + '{"a": true, "\\u0061": 3}') != before + '{"a": true, "\\u0061": 3}'


@pytest.mark.parametrize("kind", [int, float, list[int], dict[str, float]])
def test_numbers_of_typed_output_end(kind: Any) -> None:
    from agentkv.output._spec import output_spec

    before = {list[int]: "[", dict[str, float]: '{"k": '}.get(kind, "")
    grammar = output_spec(kind).constraint.grammar  # type: ignore[union-attr]
    assert reached(grammar, before + "9" * 16) == before + "9" * 15


TOOL = {"name": "f", "parameters": {**OBJECT, "properties": {"a": BOOL, "n": {"type": "integer"}, "o": OBJECT}}}
CALLERS = [family for family in FAMILIES.values() if family.calls]


@pytest.mark.parametrize("family", CALLERS, ids=lambda family: family.name)
def test_numbers_and_keys_of_calls(family: Any) -> None:
    form = family.fit({})
    call = form.write("", [("f", {"n": 5, "o": {"b": 1}})])
    grammar = form.grammar([TOOL], choice="required")
    known = form.write("", [("f", {"n": 5})])
    head = known[: known.index("5")]
    assert reached(grammar, head + "9" * 15) == head + "9" * 15
    assert reached(grammar, head + "9" * 16) == head + "9" * 15
    key = call.index("b", call.index("5"))
    escaped = call[:key] + "\\u0061" + call[key + 1 :]
    assert reached(grammar, escaped) != escaped


def test_tokens_of_several_digits_are_counted() -> None:
    tokens = NumberTokens([b"1", b"12", b"123", b",", b"12,", b"a", b""])
    mask = np.array([0b0011111], np.uint32)
    left = [int(tokens.without_more(mask, left)[0]) for left in range(4)]
    assert left == [0b0001000, 0b0001001, 0b0011011, 0b0011111]
    in_text = np.array([0b0111111], np.uint32)
    assert int(tokens.without_more(in_text, 0)[0]) == 0b0111111


@pytest.mark.parametrize(
    ("before", "left"),
    [
        (b'{"n": 12', 13),
        (b"12", 13),
        (b"-12.5", 14),
        (b"n=12", 13),
        (b"1e5", 1),
        (b"1e-55", 0),
        (b'"12', None),
        (b"x12", None),
        (b"", None),
        (b"-", None),
    ],
)
def test_how_many_digits_are_left(before: bytes, left: int | None) -> None:
    assert digits_left(before, 15) == left


def test_regular_expressions_are_bounded_by_themselves_alone() -> None:
    assert most_digits(kv.Regex("[0-9]+").grammar) is None
    assert reached(kv.Regex("[0-9]+").grammar, "9" * 50) == "9" * 50


def _biased(tokenizer: kv.Tokenizer, texts: Sequence[str], bias: float) -> dict[int, float]:
    return {tokenizer.encode(text)[0]: bias for text in texts}


@pytest.mark.anyio
async def test_what_is_generated_under_random_schemas_validates() -> None:
    """Escapes and digits are made likely: those are what went wrong."""
    ended = 0
    async with kv.Context.open(kv.models.nano(), capacity=2048, threads=1) as ctx:
        branch = await ctx.branch("JSON:")
        odd = _biased(ctx.tokenizer, ["\\", "0", "9", "e"], 3.0) | _biased(ctx.tokenizer, ['"', "}", "]", "u"], 5.0)
        for seed in range(40):
            schema = random_schema(random.Random(seed), 2)
            sampling = kv.Sampling(temperature=2.0, seed=seed, logit_bias=odd)
            async with await branch.fork() as fork:
                made = await fork.generate(output=kv.JsonSchema(schema), sampling=sampling, max_tokens=120)
            if made.finish_reason != "length":
                ended += 1
                faults = [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(made.output)]
                assert not faults, (seed, schema, made.text)
    assert ended > 25
