"""Response templates are read as transformers reads them: whole, in random cuts, and where they are malformed."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from typing import Any

import pytest
from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats import FAMILIES, Format, ParsedMessage
from agentkv_runtime.formats.template import load_template
from transformers.utils.chat_parsing import ResponseParser, parse_response
from transformers.utils.chat_parsing.response_templates import load_response_template

from .cuts import check_deltas, cuts, read

CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {
                    "i": {"type": "integer"},
                    "n": {"type": "number"},
                    "b": {"type": "boolean"},
                    "z": {"type": ["null", "string"]},
                    "o": {"type": "object"},
                    "a": {"type": "array", "items": {"type": "integer"}},
                    "u": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
                    "s": {"type": "string"},
                    "m": {"type": "integer", "nullable": True},
                },
            },
        },
    }
]

# Templates in the manner of those that publishers ship, and the pieces that random texts are made of.
TEMPLATES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "json calls": (
        {
            "defaults": {"role": "assistant"},
            "start_anchor": "<|im_start|>assistant\n",
            "fields": {
                "reasoning_content": {"open": "<think>", "close": "</think>"},
                "tool_calls": {
                    "open_pattern": r"\s*<tool_call>",
                    "close": "</tool_call>",
                    "repeats": True,
                    "content": "json",
                    "transform": {"type": "function", "function": "{content}"},
                },
                "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)"},
            },
        },
        [
            *("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", "\n", " ", "Hi", "<", "<tool"),
            *('{"name": "f", "arguments": {"i": "3"}}', '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'),
        ],
    ),
    "tagged calls": (
        {
            "start_anchor_pattern": r"<\|im_start\|>assistant\s",
            "fields": {
                "thinking": {"open": ["<think>", "<thinking>"], "close": ["</think>", "</thinking>"]},
                "tool_calls": {
                    "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
                    "close_pattern": r"</function>\s*</tool_call>",
                    "repeats": True,
                    "content": "xml-inline",
                    "content_args": {
                        "tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>",
                        "merge_duplicates": True,
                    },
                    "transform": CALL,
                },
                "content": {"repeats": True, "join": " | "},
            },
        },
        [
            *("<think>", "</think>", "<thinking>", "</thinking>", "Hi", "\n", " ", "<", "</function>", "</tool_call>"),
            *("<tool_call>\n<function=f>\n", "\n</function>\n</tool_call>", "<parameter=i>\n3\n</parameter>"),
            *("<parameter=n>3.50</parameter>", "<parameter=b>True</parameter>", "<parameter=z>null</parameter>"),
            *('<parameter=o>{"a": 1}</parameter>', "<parameter=a>[1, 2]</parameter>", "<parameter=u>1</parameter>"),
            *("<parameter=s>3</parameter>", "<parameter=m>None</parameter>", "<parameter=x>y</parameter>"),
            "<parameter=i>3.0</parameter>",
        ],
    ),
    "channels": (
        {
            "defaults": {"role": "assistant", "tool_calls": []},
            "start_anchor": "<|start|>assistant",
            "fields": {
                "thinking": {"open": "<|channel|>analysis<|message|>", "close": ["<|end|>", "<|return|>"]},
                "content": {"open": "<|channel|>final<|message|>", "close_pattern": r"<\|end\|>|<\|return\|>"},
                "tool_calls": {
                    "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
                    "close": "<|call|>",
                    "content": "json",
                    "repeats": True,
                    "transform": CALL,
                },
            },
        },
        [
            *("<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|end|>", "<|return|>", "<|call|>"),
            *("<|channel|>commentary to=functions.f <|constrain|>json<|message|>", '{"i": 1}', "Hi ", "<|", "{}"),
        ],
    ),
    "own notation": (
        {
            "start_anchor": ["<|turn>model\n", "<tool_response|>"],
            "fields": {
                "reasoning_content": {"open": "<|channel>thought\n", "close": "<channel|>"},
                "tool_calls": {
                    "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
                    "close": "<tool_call|>",
                    "repeats": True,
                    "content": "json",
                    "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
                    "transform": CALL,
                },
                "content": {"close": ["<turn|>", "<|tool_response>", "<eos>"]},
            },
        },
        [
            *("<|channel>thought\n", "<channel|>", "<|tool_call>call:f", "<tool_call|>", "<turn|>", "<eos>", " Hi "),
            *('{s:<|"|>a: {b}<|"|>,i:3}', "{}", "{a:[1,2],o:{k:null}}", "<|", "|>"),
        ],
    ),
    "lists and numbers": (
        {
            "start_anchor": "[/INST]",
            "fields": {
                "tool_calls": {
                    "open": "[TOOL_CALLS]",
                    "close_pattern": r"</s>|$",
                    "content": "json",
                    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
                    "transform_each": True,
                },
                "score": {"open": "<score>", "close": "</score>", "content": "float"},
                "count": {"open": "<count>", "close": "</count>", "content": "int", "repeats": True},
                "sure": {"open": "<sure>", "close": "</sure>", "content": "bool"},
                "meta": {
                    "open": "<meta>",
                    "close": "</meta>",
                    "content": "kv-lines",
                    "content_args": {"kv_sep": "=", "value_parser": {"name": "json", "args": {"allow_non_json": True}}},
                },
                "content": {"content_args": {"strip": False}},
            },
        },
        [
            *("[TOOL_CALLS]", '[{"name": "f", "arguments": {"i": "3"}}]', '[{"name": "g", "arguments": {}}]', "</s>"),
            *("<score>1.5</score>", "<count> 3</count>", "<sure>True</sure>", "<meta>a=1\nb = x\n\nc</meta>", " Hi "),
            *("<score>", "</score>", "<count>4"),
        ],
    ),
    **{
        name: (family.template(), [*tags, " ", "\n", "Hi", "{}", '{"a": 1}'])
        for name, tags in {
            "hermes": ["<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {}}', "</s>"],
            "harmony": [
                *("<|start|>assistant", "<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|end|>"),
                *(
                    "<|channel|>commentary to=functions.f",
                    " to=functions.f<|channel|>commentary",
                    " json",
                    "<|message|>",
                ),
                "<|call|>",
            ],
            "llama-json": [
                '{"name": "f", "parameters": {"i": 1}}',
                "<|python_tag|>",
                "<|eot_id|>",
                "<think>",
                "</think>",
            ],
        }.items()
        if (family := FAMILIES[name])
    },
}


def texts(name: str, count: int) -> list[str]:
    choose = random.Random(name)
    pieces = TEMPLATES[name][1]
    return ["".join(choose.choices(pieces, k=choose.randrange(1, 12))) for _ in range(count)]


def by_transformers(template: Mapping[str, Any], text: str, **options: Any) -> dict[str, Any] | None:
    """transformers' message; None where it raises because something cannot be parsed."""
    try:
        return dict(parse_response(text, copy.deepcopy(dict(template)), **{"prefix": "", **options}))
    except (ValueError, KeyError):
        return None


def as_dict(message: ParsedMessage, names: list[str]) -> dict[str, Any]:
    reasoning = next((name for name in ("reasoning_content", "thinking", "reasoning") if name in names), "")
    found = {**message.fields, "content": message.content, reasoning: message.reasoning}
    calls = [{"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in message.calls]
    found["tool_calls"] = calls
    return {name: value for name, value in found.items() if name and value not in ("", [])}


def check_same(name: str, text: str, **options: Any) -> bool:
    """Is our message that of transformers, in any cuts? False where theirs cannot be compared."""
    template = TEMPLATES[name][0]
    form = Format(name, load_template(template))
    theirs = by_transformers(template, text, **options)
    first = None
    for pieces in cuts(text, times=3):
        message, deltas = read(form, pieces, **options)
        first = first or message
        assert message == first, text
        if not any(field.get("repeats") is None for field in template["fields"].values()):
            check_deltas(message, deltas)
    assert first is not None
    if theirs is None or any(call.error for call in first.calls):
        return False
    expected = {key: value for key, value in theirs.items() if value != []}
    assert as_dict(first, list(template["fields"])) == expected, text
    return True


@pytest.mark.parametrize("name", TEMPLATES)
def test_random_texts_are_read_alike(name: str) -> None:
    compared = [check_same(name, text) for text in texts(name, 60)]
    assert sum(compared) > 15


@pytest.mark.soak
@pytest.mark.parametrize("name", TEMPLATES)
def test_many_random_texts_are_read_alike(name: str, soak_count: int) -> None:
    compared = [check_same(name, text) for text in texts(name, soak_count)]
    assert sum(compared) > soak_count // 4


def test_arguments_are_cast_alike() -> None:
    tags = [piece for piece in TEMPLATES["tagged calls"][1] if piece.startswith("<parameter=")]
    odd = ["<parameter=i>x</parameter>", "<parameter=n>1e3</parameter>", "<parameter=n>inf</parameter>"]
    odd += ["<parameter=b>yes</parameter>", "<parameter=o>[1]</parameter>", "<parameter=a>{}</parameter>"]
    odd += ["<parameter=u>true</parameter>", "<parameter=i> 7 </parameter>", "<parameter=n>-0</parameter>"]
    choose = random.Random(7)
    for _ in range(60):
        inner = "\n".join(choose.choices([*tags, *odd], k=choose.randrange(6)))
        text = f"<tool_call>\n<function=f>\n{inner}\n</function>\n</tool_call>"
        assert check_same("tagged calls", text, tools=TOOLS)


@pytest.mark.parametrize(
    ("name", "prefix", "text"),
    [
        ("json calls", "<|im_start|>user\n<think><|im_end|>\n<|im_start|>assistant\n<think>\n", "Hm.</think>Hi"),
        ("json calls", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "Hi<|im_end|>"),
        ("json calls", "<|im_start|>assistant\na<|im_end|>\n<|im_start|>assistant\n", "Hi"),
        ("json calls", "no anchor <think>", "Hi"),
        ("tagged calls", "<|im_start|>assistant <tool_call><function=f>", "</function></tool_call>Hi"),
        ("own notation", "<|turn>model\n<|tool_call>call:f{}<tool_call|><tool_response|>", "Hi<turn|>"),
    ],
)
def test_prompts_are_read_alike(name: str, prefix: str, text: str) -> None:
    assert check_same(name, text, prefix=prefix)


MALFORMED: list[Any] = [
    [],
    {"fields": {}},
    {"start_anchor": "a", "fields": []},
    {"fields": {"content": {}}},
    {"version": 2, "start_anchor": "a", "fields": {"content": {}}},
    {"start_anchor": "a", "fields": {"content": {}}, "other": 1},
    {"start_anchor": "a", "defaults": [], "fields": {"content": {}}},
    {"start_anchor": "a", "start_anchor_pattern": "a", "fields": {"content": {}}},
    {"start_anchor": "a", "fields": {"content": {}, "other": {}}},
    *(
        {"start_anchor": "a", "fields": {"content": field}}
        for field in [
            3,
            {"opens": "a"},
            {"content": "yaml"},
            {"open": ""},
            {"open": []},
            {"open": [1]},
            {"open": 1},
            {"open_pattern": "("},
            {"open": "a", "open_pattern": "a"},
            {"join": "a"},
            {"join": 1, "repeats": True},
            {"open_pattern": "(?P<a>b)"},
            {"transform_each": True},
            {"transform_each": 1, "transform": "{content}"},
            {"transform": "a {content}"},
            {"content_args": []},
            {"content": "xml-inline"},
            {"content": "xml-inline", "content_args": {"tag_pattern": "("}},
            {"content": "xml-inline", "content_args": {"tag_pattern": "(?P<name>a)"}},
            {"content": "kv-lines", "content_args": {"kv_sep": ""}},
            {"content": "kv-lines", "content_args": {"value_parser": {"name": "yaml"}}},
            {"content": "json", "content_args": {"string_delims": [["a"]]}},
            {"transform": ["{content}", {"a": "b{content}"}]},
        ]
    ),
]


@pytest.mark.parametrize("template", MALFORMED, ids=str)
def test_malformed_templates_are_refused_alike(template: Any) -> None:
    field = template["fields"].get("content") if isinstance(template, dict) and template.get("fields") else None
    if not isinstance(field, dict) or not field.keys() & {"content", "content_args"} or field.get("content") == "yaml":
        with pytest.raises(ValueError, match=r"."):  # which looks at content_args when it has something to parse
            load_response_template(template)
    with pytest.raises(FormatError, match=r"."):
        load_template(template)


@pytest.mark.parametrize("name", TEMPLATES)
def test_good_templates_are_loaded_alike(name: str) -> None:
    ours, theirs = load_template(TEMPLATES[name][0]), load_response_template(copy.deepcopy(TEMPLATES[name][0]))
    assert list(ours.fields) == list(theirs.fields)
    assert (ours.implicit.name if ours.implicit else None) == theirs.implicit


def test_a_pattern_that_backtracks_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkv_runtime.formats.template.MATCH_SECONDS", 0.05)
    field = {"open_pattern": r"(a+)+b", "close": "c"}
    parser = Format("slow", load_template({"start_anchor": "x", "fields": {"content": field}})).parser()
    with pytest.raises(FormatError, match=r"takes more than 0\.05 s"):
        parser.feed("a" * 4000)


def test_regions_are_told_as_early_as_transformers_tells_them() -> None:
    """After each character, what has been shown of a text is what transformers has shown, white space apart."""
    template, _ = TEMPLATES["json calls"]
    text = 'Well, <b>\n<tool_call>\n{"name": "f", "arguments": {}}</tool_call>\nDone <|im_end|>'
    ours, theirs = Format("", load_template(template)).parser(), ResponseParser(template, prefix="")
    shown, expected = "", ""
    for character in text:
        shown += "".join(
            delta.text for delta in ours.feed(character) if hasattr(delta, "text") and not hasattr(delta, "index")
        )
        events = [event for event in theirs.feed(character) if event["type"] == "region_chunk"]
        expected += "".join(event["text"] for event in events if event["field"] == "content")
        assert "".join(shown.split()) == "".join(expected.split())
