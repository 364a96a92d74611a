"""JSON between tags: Hermes, Qwen 3, nano."""

from __future__ import annotations

import pytest
from agentkv_runtime.formats import ArgumentsDelta, CallClosed, CallOpened, Format, find_format
from agentkv_runtime.formats.families.hermes import HERMES, NANO
from agentkv_runtime.text.tokenizer import Tokenizer

import agentkv as kv

from .cuts import check_deltas, cuts, read

TWO = (
    "<think>\nWhich city?\n</think>\n\nOne moment.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "note": "a \\"b\\" {[ </tool_call>"}}\n'
    "</tool_call>\n"
    '<tool_call>\n{"arguments": {}, "name": "now"}\n</tool_call><|im_end|>'
)


@pytest.fixture(scope="module")
def hermes() -> Format:
    return HERMES.fit({})


def test_a_message_is_read_in_any_cuts(hermes: Format) -> None:
    for pieces in cuts(TWO):
        message, deltas = read(hermes, pieces)
        assert (message.content, message.reasoning) == ("One moment.", "Which city?")
        assert [(call.name, call.arguments, call.error) for call in message.calls] == [
            ("weather", {"city": "Oslo", "note": 'a "b" {[ </tool_call>'}, None),
            ("now", {}, None),
        ]
        check_deltas(message, deltas)
        arguments = "".join(d.text for d in deltas if isinstance(d, ArgumentsDelta) and d.index == 0)
        assert arguments == '{"city": "Oslo", "note": "a \\"b\\" {[ </tool_call>"}'


def test_a_call_is_told_before_the_next_is_written(hermes: Format) -> None:
    parser = hermes.parser()
    first, second = TWO.split("</tool_call>\n")
    deltas = parser.feed(first + "</tool_call>")
    assert isinstance(deltas[-1], CallClosed)
    assert CallOpened(1, "now") not in deltas
    assert CallOpened(1, "now") in parser.feed(second)


def test_what_is_cut_off_never_comes_out_as_a_call(hermes: Format) -> None:
    closings = [TWO.find("</tool_call>", TWO.find("<tool_call>\n{", start)) for start in (0, TWO.rfind("<tool_call>"))]
    closings[0] = TWO.find("</tool_call>", closings[0] + 1)  # the first one stands in a string
    ends = [closing + len("</tool_call>") for closing in closings]
    for length in range(0, len(TWO), 3):
        message = hermes.parse(TWO[:length])
        complete = [call for call in message.calls if call.error is None]
        assert len(complete) == sum(length >= end for end in ends)
        assert all(call.arguments is None and call.error for call in message.calls if call not in complete)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{}",
        "not json",
        '{"name": 3}',
        '{"name": "a", "arguments": 3}',
        '{"name": "a", "arguments": [}',
        "[1]",
        "[]x",
    ],
)
def test_what_is_no_call_is_an_error_that_says_why(hermes: Format, body: str) -> None:
    for pieces in cuts(f"a <tool_call>{body}</tool_call> b"):
        message, deltas = read(hermes, pieces)
        [call] = message.calls
        assert call.arguments is None
        assert call.error
        assert call.raw == body
        assert message.content == "a\nb"
        check_deltas(message, deltas)


def test_arguments_may_be_left_out_or_be_json_in_a_string(hermes: Format) -> None:
    text = '<tool_call>{"name": "a"}</tool_call><tool_call>{"name": "b", "arguments": "{\\"x\\": 1}"}</tool_call>'
    assert [call.arguments for call in hermes.parse(text).calls] == [{}, {"x": 1}]


def test_the_prompt_may_hold_the_beginning_of_the_reply(hermes: Format) -> None:
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    parser = hermes.parser(prefix=prompt)
    assert parser.in_reasoning
    parser.feed("Hm.\n</think>\n\nHello!<|im_end|>")
    message = parser.finish()
    assert (message.reasoning, message.content) == ("Hm.", "Hello!")
    assert not hermes.parser(prefix=prompt + "\n</think>\n\n").in_reasoning


def test_the_format_of_nano_is_found() -> None:
    tokenizer = Tokenizer.from_folder(kv.models.nano())
    found = find_format(tokenizer)
    assert found.name == "nano"
    assert found.thinking is None
    assert found.tokens["<tool_call>"] == 1018
    assert found.template.reply_in("a<|im_start|>assistant\nb") == "b"
    assert found.parse("<think>a</think>b").content == "<think>a</think>b"


@pytest.mark.parametrize("family", [HERMES, NANO], ids=lambda family: family.name)
def test_what_is_written_is_read(family: kv.formats.Family) -> None:
    form = family.fit({})
    calls = [("weather", {"city": "Å", "days": 2}), ("now", {})]
    message = form.parse(form.write("Well.", calls, "Hm."))
    assert (message.content, message.reasoning) == ("Well.", "Hm.")
    assert [(call.name, call.arguments) for call in message.calls] == calls


@pytest.mark.parametrize("value", ['"\\ud800"', '{"\\udfff": 1}', "[" * 60 + "]" * 60, "1e999", "[NaN]"])
def test_a_call_that_no_message_can_hold_is_an_error(hermes: Format, value: str) -> None:
    (call,) = hermes.parse(f'<tool_call>{{"name": "f", "arguments": {{"a": {value}}}}}</tool_call>').calls
    assert call.arguments is None
    assert call.error is not None
