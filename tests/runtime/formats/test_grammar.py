"""Grammars of messages: free text, and calls of the tools that there are, with arguments of their schemas."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats import FAMILIES, Family, Format, find_format
from agentkv_runtime.formats.families.hermes import HERMES
from agentkv_runtime.formats.families.plain import PLAIN
from agentkv_runtime.text.tokenizer import Tokenizer

import agentkv as kv

from .matching import Grammar, tokenizer_with

CALLERS = [family for family in FAMILIES.values() if family.calls]
WHOLE = {"llama-json", "pythonic"}  # a message is text or calls
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9},
                    "unit": {"enum": ["C", "F"]},
                    "exact": {"type": "boolean"},
                },
                "required": ["city", "days"],
            },
        },
    },
    {"name": "now"},
    {
        "name": "plan",
        "parameters": {
            "type": "object",
            "properties": {
                "steps": {"type": "array", "items": {"$ref": "#/$defs/Step"}, "maxItems": 3},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
            "required": ["steps"],
            "$defs": {
                "Step": {
                    "type": "object",
                    "properties": {"what": {"enum": ["go", "stop"]}, "then": {"$ref": "#/$defs/Step"}},
                    "required": ["what"],
                    "additionalProperties": False,
                }
            },
        },
    },
]
SCHEMAS = {tool.get("function", tool)["name"]: tool.get("function", tool).get("parameters", {}) for tool in TOOLS}
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("get_weather", {"city": 'Bj\u00f8rn, "a" (b)', "days": 2}),
    ("get_weather", {"city": "x", "days": 9, "unit": "F", "exact": True}),
    ("now", {}),
    ("plan", {"steps": []}),
    ("plan", {"steps": [{"what": "go", "then": {"what": "stop"}}, {"what": "stop"}]}),
]
BAD: list[tuple[str, dict[str, Any]]] = [
    ("get_time", {}),
    ("get_weather", {"days": 2}),
    ("get_weather", {"city": "x", "days": 12}),
    ("get_weather", {"city": "x", "days": 2, "unit": "K"}),
    ("now", {"zone": "x"}),
    ("plan", {"steps": [{"what": "fly"}]}),
    ("plan", {"steps": [{"what": "go"}] * 4}),
]
LIKED = ['"', "}", "]", ")", "1", "go", "0", "\n</parameter>\n", "</arg_value>\n", '<|"|>', "<escape>"]
LIKED += [
    "</tool_call>",
    "</function>\n</tool_call>",
    "<tool_call|>",
    "<|tool_call_end|>",
    "[TOOL_CALLS]",
    "</parameter>",
]
LIKED += ["</think>", "[/THINK]", "<channel|>"]


def controls(family: Family) -> tuple[str, ...]:
    """The tags of a family's calls and reasoning, which models have as added tokens."""
    spelled = family.spelling.written([("f", {"a": "b"})]) + "".join(family.thinking or ())
    if family.name == "harmony":
        spelled += "<|end|><|start|><|return|>"
    tags = re.findall(r"</?\w+>|<\|?\"?\|?\w*\|>|<\|\w+>|<\|\"\|>|\[/?[A-Z_]+\]|<\uff5c.*?\uff5c>|</?\w+(?==)", spelled)
    return tuple(dict.fromkeys(tag for tag in tags if not tag.startswith(("<f", "<param", "</param", "</f"))))


def grammars(family: Family, **options: Any) -> list[tuple[Format, Grammar]]:
    """Over tokenizers where the tags are special tokens, are added tokens, and are plain text."""
    made = []
    for tags, special in ((controls(family), True), (controls(family), False), ((), True)):
        tokenizer = tokenizer_with(tags, special=special)
        form = family.fit(tokenizer.added_ids)
        made.append((form, Grammar(tokenizer, form.grammar(TOOLS, **options))))
    return made


def reply(form: Format, *calls: tuple[str, dict[str, Any]], content: str = "") -> str:
    each = [calls] if form.spelling.several else [[call] for call in calls]
    text = "".join(form.write(content, made) for made in each)
    return text.removesuffix("<|call|>")  # with which a generation ends


@pytest.mark.parametrize("family", CALLERS, ids=lambda family: family.name)
def test_calls_of_tools_that_there_are_may_be_made(family: Family) -> None:
    for form, grammar in grammars(family):
        for call in GOOD:
            assert grammar.takes(reply(form, call)), reply(form, call)
        if family.spelling.several:
            assert grammar.takes(reply(form, *GOOD))
        if family.name not in WHOLE and family.name != "harmony":
            assert grammar.takes(reply(form, GOOD[0], content="One moment, < [ { please."))


@pytest.mark.parametrize("family", CALLERS, ids=lambda family: family.name)
def test_other_calls_may_not(family: Family) -> None:
    for form, grammar in grammars(family):
        for call in BAD:
            assert not grammar.takes(reply(form, call)), reply(form, call)
        whole = reply(form, GOOD[0])
        assert not any(grammar.takes(whole[:length]) for length in range(len(whole) - 8, len(whole)) if whole[:length])


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_text_is_free(family: Family) -> None:
    answers = ["Hello.", "a < b, [1, 2] {3}: \u00e5 \u4f60\n\n```py\nf(x)\n```", ""]
    for form, grammar in (
        grammars(family) if family.calls else [(PLAIN.fit({}), Grammar(tokenizer_with(()), PLAIN.fit({}).grammar()))]
    ):
        for text in answers:
            assert grammar.takes(f"<|channel|>final<|message|>{text}" if form.name == "harmony" else text)


@pytest.mark.parametrize("family", CALLERS, ids=lambda family: family.name)
def test_calls_may_be_required_forbidden_and_chosen(family: Family) -> None:
    text = "<|channel|>final<|message|>Hi" if family.name == "harmony" else "Hi"
    now, plan = GOOD[2], GOOD[3]
    for form, grammar in grammars(family, choice="required"):
        assert grammar.takes(reply(form, now))
        assert not grammar.takes(text)
    for form, grammar in grammars(family, choice="none"):
        assert grammar.takes(text)
        assert form.name in WHOLE or not grammar.takes(reply(form, now))
    for form, grammar in grammars(family, choice="now"):
        assert grammar.takes(reply(form, now))
        assert not grammar.takes(reply(form, plan))
        assert not grammar.takes(reply(form, now, now))
        assert not grammar.takes(text)
    for form, grammar in grammars(family, most_calls=1):
        assert grammar.takes(reply(form, now))
        assert not grammar.takes(reply(form, now, plan))
    for form, grammar in grammars(family, most_calls=3):
        assert grammar.takes(reply(form, now, plan, now)) == family.spelling.several
        assert not grammar.takes(reply(form, now, plan, now, now))
    for form, grammar in grammars(family, output={"type": "integer"}):
        assert grammar.takes(reply(form, now))
        assert grammar.takes(text.replace("Hi", "12"))
        assert not grammar.takes(text)


def check_walks(family: Family, seeds: int) -> None:
    ended = 0
    for number, (form, grammar) in enumerate(grammars(family, choice="required")):
        for seed in range(seeds):
            text, whole = grammar.walk(f"{family.name} {number} {seed}", liked=LIKED)
            message = form.parse(text, tools=TOOLS)
            good = [call for call in message.calls if call.error is None]
            if whole:
                assert good, text
                assert len(good) == len(message.calls), (text, message.calls)
                ended += 1
            for call in good:
                assert call.arguments is not None
                jsonschema.validate(call.arguments, SCHEMAS[call.name])
    assert ended


@pytest.mark.parametrize("family", CALLERS, ids=lambda family: family.name)
def test_what_a_random_model_writes_are_calls_that_fit(family: Family) -> None:
    check_walks(family, 4)


@pytest.mark.soak
@pytest.mark.parametrize("family", CALLERS, ids=lambda family: family.name)
def test_many_random_messages_are_calls_that_fit(family: Family, soak_count: int) -> None:
    check_walks(family, soak_count // 10)


def test_reasoning_comes_first_and_is_free() -> None:
    for form, grammar in grammars(HERMES, choice="required"):
        assert grammar.takes(form.write("", [GOOD[2]], "Shall I, {or [ not?"))
        assert not grammar.takes("<think>Hm.")
        assert not grammar.takes(form.write("Hello.", [], "Hm."))
    tokenizer = tokenizer_with(controls(HERMES))
    form = HERMES.fit(tokenizer.added_ids)
    opened = Grammar(tokenizer, form.grammar(TOOLS, prefix="<|im_start|>assistant\n<think>\n"))
    assert opened.takes("Hm.\n</think>\n\nHello.")
    assert not opened.takes("Hello.")


def test_a_marker_is_never_spelled_in_text() -> None:
    """Neither as its token nor letter by letter may it stand in text without a call behind it."""
    tokenizer = tokenizer_with(("<tool_call>", "</tool_call>"), special=False)
    form = HERMES.fit(tokenizer.added_ids, thinks=False)
    grammar = Grammar(tokenizer, form.grammar(TOOLS))
    letters = tokenizer.encode("a <tool_call", parse_special=False)
    assert grammar._begin().try_consume_tokens([*letters, *tokenizer.encode(">")]) == len(letters)
    assert grammar.taken("a <tool_call>x") == "a <tool_call>"


def test_a_choice_must_be_there() -> None:
    form = HERMES.fit({})
    with pytest.raises(FormatError, match="name of a tool: get_weather, now"):
        form.grammar(TOOLS, choice="later")
    with pytest.raises(FormatError, match="no tool to call"):
        form.grammar(choice="required")
    with pytest.raises(FormatError, match="how this model spells calls is not known"):
        PLAIN.fit({}).grammar(TOOLS)


def test_nano_calls_are_forced_token_by_token() -> None:
    tokenizer = Tokenizer.from_folder(kv.models.nano())
    form = find_format(tokenizer)
    grammar = Grammar(tokenizer, form.grammar(TOOLS, choice="now"))
    whole = tokenizer.encode('<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    matcher = grammar._begin()
    assert matcher.compute_ff_tokens() == whole


def test_what_ends_an_argument_may_be_a_token() -> None:
    family = FAMILIES["qwen-xml"]
    tokenizer = tokenizer_with((*controls(family), "</parameter>", "</function>"), special=False)
    form = family.fit(tokenizer.added_ids)
    grammar = Grammar(tokenizer, form.grammar(TOOLS))
    assert all(grammar.takes(reply(form, call)) for call in GOOD)
    assert not any(grammar.takes(reply(form, call)) for call in BAD)
