"""What response templates read is what transformers reads with them: whole, and in random cuts."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from typing import Any

import pytest
from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats import Format, ParsedMessage
from agentkv_runtime.formats.template import load_template
from transformers.utils.chat_parsing import ResponseParser, parse_response

from .cuts import check_deltas, cuts, read
from .response_templates import TEMPLATES, TOOLS


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
