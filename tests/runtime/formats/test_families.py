"""Every family that is known: what it writes it reads, as transformers reads it, and its grammar takes it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import Any

import pytest
from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats import FAMILIES, CallClosed, Family, ParsedMessage
from transformers.utils.chat_parsing import parse_response

from .cuts import check_deltas, cuts, read

CALLERS = [family for family in FAMILIES.values() if family.calls]
OURS_ALONE = {"pythonic", "lfm2"}  # transformers has no parser of Python calls

# What the models write, by the templates and documentation that they come with.
OUTPUTS: dict[str, list[tuple[str, str, str, list[tuple[str, dict[str, Any]]]]]] = {
    "hermes": [
        ("Hello!<|im_end|>", "Hello!", "", []),
        (
            '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"a": [1, {"b": null}]}}\n</tool_call>\n'
            '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call><|im_end|>\n<|endoftext|>',
            "",
            "Hm.",
            [("f", {"a": [1, {"b": None}]}), ("g", {})],
        ),
    ],
    "nano": [
        (
            'Sure.\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call><|im_end|>',
            "Sure.",
            "",
            [("f", {"a": 1})],
        )
    ],
    "qwen-xml": [
        (
            "I look.\n\n<tool_call>\n<function=read>\n<parameter=path>\na.txt\n</parameter>\n<parameter=text>\n"
            "one\n\n  two <b>\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n"
            "</tool_call><|im_end|>",
            "I look.",
            "",
            [("read", {"path": "a.txt", "text": "one\n\n  two <b>"}), ("now", {})],
        )
    ],
    "glm": [
        (
            "<think>Hm.</think>\nI look.\n<tool_call>read\n<arg_key>path</arg_key>\n<arg_value>a b</arg_value>\n"
            "</tool_call>\n<tool_call>now\n</tool_call><|observation|>",
            "I look.",
            "Hm.",
            [("read", {"path": "a b"}), ("now", {})],
        )
    ],
    "llama-json": [
        ("Hello!<|eot_id|>", "Hello!", "", []),
        ('{"name": "f", "parameters": {"a": "x}"}}<|eot_id|>', "", "", [("f", {"a": "x}"})]),
        ('<|python_tag|>{"name": "f", "parameters": {}}<|eom_id|>', "", "", [("f", {})]),
        ('Write {"name": 1} to it.', 'Write {"name": 1} to it.', "", []),
    ],
    "pythonic": [
        (
            '[f(a="x, )", b=[1, {"c": True}]), g.h()]<|eot_id|>',
            "",
            "",
            [("f", {"a": "x, )", "b": [1, {"c": True}]}), ("g.h", {})],
        ),
        ("[1, 2] is a list.", "[1, 2] is a list.", "", []),
    ],
    "mistral": [
        (
            '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}, {"name": "g", "arguments": {}}]</s>',
            "",
            "",
            [("f", {"a": 1}), ("g", {})],
        ),
        ("[THINK]Hm.[/THINK]Hello!</s>", "Hello!", "Hm.", []),
    ],
    "mistral-spaced": [('Ok. [TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]</s>', "Ok.", "", [("f", {"a": 1})])],
    "mistral-args": [
        (
            'Ok.[TOOL_CALLS]f[ARGS]{"a": "]"}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}</s>',
            "Ok.",
            "",
            [("f", {"a": "]"}), ("g", {})],
        )
    ],
    "harmony": [
        ("<|channel|>final<|message|>Hello!<|return|>", "Hello!", "", []),
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
            '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
            "I look.",
            "Hm.",
            [("f", {"a": 1})],
        ),
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.f<|channel|>commentary json"
            '<|message|>{"a": 1}<|call|>',
            "",
            "Hm.",
            [("f", {"a": 1})],
        ),
    ],
    "deepseek-v3": [
        (
            "I look.<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function"
            '<\uff5ctool\u2581sep\uff5c>f\n```json\n{"a": 1}\n```<\uff5ctool\u2581call\u2581end\uff5c>\n'
            "<\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>g\n```json\n{}\n```"
            "<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls\u2581end\uff5c>"
            "<\uff5cend\u2581of\u2581sentence\uff5c>",
            "I look.",
            "",
            [("f", {"a": 1}), ("g", {})],
        )
    ],
    "deepseek-v3.1": [
        (
            "<think>Hm.</think>I look.<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>f"
            '<\uff5ctool\u2581sep\uff5c>{"a": 1}<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581call\u2581begin'
            "\uff5c>g<\uff5ctool\u2581sep\uff5c>{}<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls"
            "\u2581end\uff5c><\uff5cend\u2581of\u2581sentence\uff5c>",
            "I look.",
            "Hm.",
            [("f", {"a": 1}), ("g", {})],
        )
    ],
    "phi4": [
        (
            '<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|><|end|>',
            "",
            "",
            [("f", {"a": 1})],
        )
    ],
    "granite": [
        (
            '<|tool_call|> [{"arguments": {"a": 1}, "name": "f"}, {"name": "g", "arguments": {}}]<|end_of_text|>',
            "",
            "",
            [("f", {"a": 1}), ("g", {})],
        )
    ],
    "lfm2": [
        (
            "<|tool_call_start|>[f(a=\"x\", b=-1.5, c=None), g(d='it\\'s')]<|tool_call_end|>I look.<|im_end|>",
            "I look.",
            "",
            [("f", {"a": "x", "b": -1.5, "c": None}), ("g", {"d": "it's"})],
        )
    ],
    "gemma": [
        (
            "<|channel>thought\nHm.<channel|>Ok."
            '<|tool_call>call:f{a:<|"|>x: {y}<|"|>,b:[1,true],c:{d:null}}<tool_call|>'
            "<|tool_call>call:g{}<tool_call|><|tool_response>",
            "Ok.",
            "Hm.",
            [("f", {"a": "x: {y}", "b": [1, True], "c": {"d": None}}), ("g", {})],
        )
    ],
    "functiongemma": [
        (
            "<start_function_call>call:f{a:<escape>x<escape>,b:2}<end_function_call><start_function_response>",
            "",
            "",
            [("f", {"a": "x", "b": 2})],
        )
    ],
    "plain": [("<think>Hm.</think>Hello!</s>", "Hello!", "Hm.", [])],
}


def seen(message: ParsedMessage) -> tuple[str, str, list[tuple[str, dict[str, Any] | None]]]:
    assert all(call.error is None for call in message.calls)
    return message.content, message.reasoning, [(call.name, call.arguments) for call in message.calls]


def seen_by_transformers(family: Family, text: str) -> tuple[str, str, list[tuple[str, dict[str, Any]]]]:
    message: Mapping[str, Any] = parse_response(text, family.template(), prefix="")
    functions = [call["function"] for call in message.get("tool_calls", [])]
    calls = [(function["name"], function.get("arguments", {})) for function in functions]
    return message.get("content", ""), message.get("reasoning_content", ""), calls


def test_every_family_is_tried() -> None:
    assert OUTPUTS.keys() == FAMILIES.keys() - {"generic"}  # which is read with the tools: see test_dressed.py


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_are_read_in_any_cuts(name: str) -> None:
    family = FAMILIES[name]
    form = family.fit({})
    for text, *expected in OUTPUTS[name]:
        for pieces in cuts(text):
            message, deltas = read(form, pieces)
            assert seen(message) == tuple(expected)
            check_deltas(message, deltas)
        if name not in OURS_ALONE:
            assert seen_by_transformers(family, text) == tuple(expected)


@pytest.mark.parametrize("family", CALLERS, ids=lambda family: family.name)
def test_calls_that_are_cut_off_are_errors(family: Family) -> None:
    form = family.fit({})
    for text, _, _, expected in OUTPUTS[family.name]:
        for length in range(0, len(text), 3):
            good = [(call.name, call.arguments) for call in form.parse(text[:length]).calls if call.error is None]
            assert good == expected[: len(good)]


@pytest.mark.parametrize("family", CALLERS, ids=lambda family: family.name)
def test_what_is_written_is_read(family: Family) -> None:
    form = family.fit({})
    calls: list[tuple[str, dict[str, Any]]] = [
        ("get_weather", {"city": "Bj\u00f8rn \u4f60\u597d", "days": 2, "hours": [1, 2.5], "units": {"wind": "m/s"}}),
        ("get_time", {}),
    ]
    tools = [{"name": "get_weather", "parameters": {"properties": WEATHER}}]
    reasoning = "Hm." if form.thinking or family.name == "harmony" else ""
    for made in (calls[:1], calls[1:], *([calls] if family.spelling.several else [])):
        content = "" if family.spelling.begins else "Well."
        message = form.parse(form.write(content, made, reasoning), tools=tools)
        assert seen(message) == (content, reasoning, made)
    assert seen(form.parse(form.write("Well.", reasoning=reasoning))) == ("Well.", reasoning, [])
    if not family.spelling.several:
        with pytest.raises(FormatError, match="one call, not 2"):
            form.write("", calls)
    if family.spelling.begins:
        with pytest.raises(FormatError, match="not both"):
            form.write("Well.", calls[:1])


@pytest.mark.parametrize("family", CALLERS, ids=lambda family: family.name)
def test_a_call_that_others_follow_ends_with_a_character_that_ends_calls(family: Family) -> None:
    form = family.fit({})
    values: list[dict[str, Any]] = [{}, {"a": "]})>"}, {"b": {"c": [1, {"d": "x"}]}}, {"e": "\u4f60"}]
    calls = [("f", value) for value in values] if family.spelling.several else []
    for text in (form.write("", calls), *(text for text, *_ in OUTPUTS[family.name])):
        parser = form.parser()
        ended = 0
        for character in text:
            if any(isinstance(delta, CallClosed) for delta in parser.feed(character)):
                ended += 1
                # A message that ends here needs no telling: its last call is complete with it.
                assert character in form.call_ends or ended == len(form.parse(text).calls), text
    assert bool(form.call_ends) == family.spelling.several


WEATHER = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "hours": {"type": "array", "items": {"type": "number"}},
    "units": {"type": "object", "properties": {"wind": {"type": "string"}}},
}


@pytest.mark.parametrize("family", CALLERS, ids=lambda family: family.name)
def test_the_template_is_json(family: Family) -> None:
    assert json.loads(json.dumps(family.template())) == family.template()


def check_spliced(name: str, count: int) -> None:
    """Pieces of outputs in any order: what is read does not depend on the cuts, and is what transformers reads."""
    family, form, choose = FAMILIES[name], FAMILIES[name].fit({}), random.Random(name)
    pieces = [
        piece for text, *_ in OUTPUTS[name] for piece in re.split(r"(<[^>]*>|\[/?[A-Z_]+\]|\{.*?\}+)", text) if piece
    ]
    compared = 0
    for _ in range(count):
        text = "".join(choose.choices([*pieces, " ", "\n", "<", "{"], k=choose.randrange(1, 14)))
        whole = form.parse(text)
        for cut in cuts(text, times=3):
            message, deltas = read(form, cut)
            assert message == whole, text
            check_deltas(message, deltas)
        if name in OURS_ALONE or any(call.error for call in whole.calls):
            continue
        try:
            assert seen_by_transformers(family, text) == seen(whole), text
        except (ValueError, KeyError, TypeError):  # what it cannot read it does not read in part
            continue
        compared += 1
    assert name in OURS_ALONE or compared > count // 8


@pytest.mark.parametrize("name", OUTPUTS)
def test_spliced_outputs_are_read_alike(name: str) -> None:
    check_spliced(name, 40)


@pytest.mark.soak
@pytest.mark.parametrize("name", OUTPUTS)
def test_many_spliced_outputs_are_read_alike(name: str, soak_count: int) -> None:
    check_spliced(name, soak_count)
