"""Calls of known tools in other spellings than the format's: one row per spelling that models were seen to write."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from agentkv_runtime.formats import (
    FAMILIES,
    ArgumentsDelta,
    CallClosed,
    CallOpened,
    Format,
    ParsedMessage,
    TextDelta,
)
from agentkv_runtime.formats.dressed import DressedCalls
from agentkv_runtime.formats.loose_values import unclosed
from agentkv_runtime.formats.parsed import CUT_OFF

from .cuts import cuts

TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties, "required": required}},
    }
    for name, properties, required in [
        ("get_weather", {"city": {"type": "string"}, "days": {"type": "integer"}}, ["city"]),
        ("math.add", {"a": {"type": "number"}, "b": {"type": "number"}}, ["a", "b"]),
        ("now", {}, []),
        ("時間", {}, []),
        ("天気", {"都市": {"type": "string"}}, []),
    ]
]
OSLO: tuple[str, dict[str, Any]] = ("get_weather", {"city": "Oslo"})
ROME: tuple[str, dict[str, Any]] = ("get_weather", {"city": "Rome"})
CALL = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
OTHER = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
EXPLAINED = (
    'Here "name" is the function that is to be called, and "arguments" has a value for each of its parameters. Those '
    "that are not required may be left out; the function takes its defaults then. Answers come back as a message."
)

# What stands behind a call, begins one more and does not end it; the tool that it names.
HALVES = [
    ('\n{"name": "get_weather", "arguments": {"city": "Ro', "get_weather"),
    ('\n```json\n{"name": "math.add", "arguments": {"a"', "math.add"),
    ("\n{", ""),
    ("\n```js", ""),
    ('\nget_weather(city="Ro', ""),
]
# Text, the calls in it, the content beside them, the spelling.
CALLS: list[tuple[str, list[tuple[str, dict[str, Any]]], str, str]] = [
    (f"```json\n{CALL}\n```", [OSLO], "", "json"),
    (f"```json\n{json.dumps(json.loads(CALL), indent=2)}\n```", [OSLO], "", "json"),
    (f"```\n{CALL}\n```", [OSLO], "", "json"),
    (f"```json\n{CALL}", [OSLO], "", "json"),
    (CALL, [OSLO], "", "json"),
    (CALL[:-1], [OSLO], "", "json"),
    (f"```json\n{CALL[:-1]}\n```", [OSLO], "", "json"),
    (f"I look.\n<tool_call>{CALL[:-1]}</tool_call>", [OSLO], "I look.", "json"),
    (f"{CALL}\n{OTHER[:-1]}", [OSLO, ROME], "", "json"),
    (f"I look.\n{CALL}", [OSLO], "I look.", "json"),
    (f"I look: {CALL}", [OSLO], "I look:", "json"),
    (f"[{CALL}, {OTHER}]", [OSLO, ROME], "", "json"),
    (f"```json\n[{CALL}, {OTHER}]", [OSLO, ROME], "", "json"),
    (f"{CALL}\n{OTHER}", [OSLO, ROME], "", "json"),
    (f"{CALL}, {OTHER}", [OSLO, ROME], "", "json"),
    (f"```json\n{CALL}\n```\n```json\n{OTHER}\n```", [OSLO, ROME], "", "json"),
    (f"First:\n```json\n{CALL}\n```\nThen:\n```json\n{OTHER}\n```", [OSLO, ROME], "First:\nThen:", "json"),
    (f"```json\n{CALL}\n```\nI wait for the result.", [OSLO], "I wait for the result.", "json"),
    ('{"tool": "get_weather", "parameters": {"city": "Oslo"}}', [OSLO], "", "json"),
    ('{"action": "get_weather", "action_input": {"city": "Oslo"}}', [OSLO], "", "json"),
    ('{"arguments": {"city": "Oslo"}, "name": "get_weather"}', [OSLO], "", "json"),
    ('{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}', [OSLO], "", "json"),
    ('{"function": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}', [OSLO], "", "json"),
    (f'{{"tool_calls": [{CALL}, {OTHER}]}}', [OSLO, ROME], "", "json"),
    ('{"get_weather": {"city": "Oslo"}}', [OSLO], "", "json"),
    ("{'name': 'get_weather', 'arguments': {'city': 'Oslo'}}", [OSLO], "", "json"),
    ('{"name": "Get-Weather", "arguments": {"city": "Oslo"}}', [OSLO], "", "json"),
    ('{"name": "functions.get_weather", "arguments": {"city": "Oslo"}}', [OSLO], "", "json"),
    ('{"name": "math_add", "arguments": {"a": "1", "b": 2}}', [("math.add", {"a": 1, "b": 2})], "", "json"),
    ('{"name": "now"}', [("now", {})], "", "json"),
    (  # keywords of the tool's schema, copied
        '{"name": "get_weather", "arguments": {"city": "Oslo", "required": ["city"], "additionalProperties": false}}',
        [OSLO],
        "",
        "json",
    ),
    (f"{CALL}\n</tool_call>", [OSLO], "", "json"),
    (f"<tools>\n{CALL}\n</tools>", [OSLO], "", "json"),
    (f"<function_call>{CALL}</function_call>", [OSLO], "", "json"),
    (f"[TOOL_CALLS] [{CALL}]", [OSLO], "", "json"),
    ('<tool_call name="get_weather">{"city": "Oslo"}</tool_call>', [OSLO], "", "tag"),
    ('<function=get_weather>{"city": "Oslo"}</function>', [OSLO], "", "tag"),
    *(  # what closes the first may be taken for what begins the second
        (f'{begin}{{"city": "Oslo"}}{end}{between}{begin}{{"city": "Rome"}}{end}', [OSLO, ROME], "", "tag")
        for begin, end in [("<function=get_weather>", "</function>"), ('<call name="get_weather">', "</call>")]
        for between in ("", "\n", ", ")
    ),
    ('<function=now>{}</function><function=get_weather>{"city": "Oslo"}', [("now", {}), OSLO], "", "tag"),
    ('<tool_call>get_weather(city="Oslo")</tool_call>', [OSLO], "", "python"),
    ('get_weather(city="Oslo")', [OSLO], "", "python"),
    ('[get_weather(city="Oslo"), get_weather(city="Rome")]', [OSLO, ROME], "", "python"),
    ('```python\nget_weather(city="Oslo")\n```', [OSLO], "", "python"),
    (
        '```tool_code\nget_weather(city="Oslo", days=2)\n```',
        [("get_weather", {"city": "Oslo", "days": 2})],
        "",
        "python",
    ),
    ('{"name": "天気", "arguments": {"都市": "東京"}}', [("天気", {"都市": "東京"})], "", "json"),
    ('天気(都市="東京")', [("天気", {"都市": "東京"})], "", "python"),
    # Begun around it, a tag that is none.
    ('```json\n<tool {"get_weather": {"city": "Oslo"}}></function>', [OSLO], "```json\n<tool ></function>", "json"),
    # Alone it is meant as a call, whatever it lacks: the tool says what.
    ('{"name": "get_weather", "arguments": {"town": "Oslo"}}', [("get_weather", {"town": "Oslo"})], "", "json"),
]

UNWRITABLE = [
    "NaN",
    "1e999",
    "1" + "0" * 5000,
    '"\\ud800"',
    '{"\\ud800": 1}',
    "[" * 60 + "]" * 60,
    "b'x'",
    "{1, 2}",
    "(1, 2)",
    "{3: 4}",
    "{(1, 2): 3}",
]

# What is shown to a person, or is no call.
TEXTS = [
    "The function get_weather(city) gives the weather.",
    "Use `get_weather` for that.",
    f"A call looks like this:\n```json\n{CALL}\n```\n{EXPLAINED}",
    f"{CALL}\n{EXPLAINED}",
    'Use this: {"name": "get_weather", "arguments": {"town": "Oslo"}}',
    '{"name": "Bob", "age": 3}',
    '[{"name": "Bob", "arguments": {}}]',
    '```json\n{"city": "Oslo"}\n```',
    '{"type": "object", "properties": {"name": {"type": "string"}}}',
    '```python\nprint(get_weather("Oslo"))\n```',
    '```python\nfor city in ("Oslo", "Rome"):\n    get_weather(city=city)\n```',
    'def get_weather(city="Oslo"):\n    return 3',
    '{"name": "get_weather", "arguments": {"city": "Oslo"',
    '{"name": "get_weather", "arguments": {"city": {"in": "Oslo"}',
    f"{CALL[:-1]}\n{EXPLAINED}",
    '{"name": "get_weather", "arguments": ["Oslo"]}',
    '{"name": "get_weather"} is half of it',
    '{"name": "未知", "arguments": {}}',
    # What no message can hold.
    *(f'{{"name": "get_weather", "arguments": {{"city": {value}}}}}' for value in UNWRITABLE),
    *(f"{{'name': 'get_weather', 'arguments': {{'city': {value}}}}}" for value in UNWRITABLE),
    *(f"get_weather(city={value})" for value in ("1e999", '"\\ud800"', f"0x{'f' * 5000}", "[" * 60 + "]" * 60)),
    "[1, 2, 3]",
    "{",
    "```",
    "<b>get</b> and <i>weather</i>",
]


@pytest.fixture(params=["hermes", "mistral", "generic", "plain"])
def form(request: pytest.FixtureRequest) -> Format:
    return replace(FAMILIES[request.param].fit({}, ends=("<|im_end|>",), thinks=False), rescue=True)


def read(form: Format, parts: list[str]) -> tuple[ParsedMessage, str]:
    """The message, and the content as its deltas have it."""
    parser = form.parser(tools=TOOLS)
    deltas = [delta for part in parts for delta in parser.feed(part)] + parser.end()
    return parser.finish(), "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


@pytest.mark.parametrize("row", CALLS, ids=lambda row: row[0][:40])
def test_a_call_in_another_spelling_is_a_call(form: Format, row: tuple[str, list[Any], str, str]) -> None:
    text, expected, content, spelling = row
    message, told = read(form, [text])
    assert [(call.name, call.arguments) for call in message.calls] == expected
    assert [call.error for call in message.calls] == [None] * len(expected)
    assert " ".join(message.content.split()) == " ".join(content.split()) == " ".join(told.split())
    own = form.name == "generic" and spelling == "json"
    assert {call.rescued for call in message.calls} <= {None if own else spelling, None}


@pytest.mark.parametrize("text", [f"[{CALL}, {OTHER}", f"[{CALL}, {OTHER[:-1]}"])
def test_a_list_that_lacks_its_end_is_read_where_it_is_not_the_formats_own(text: str) -> None:
    form = replace(FAMILIES["hermes"].fit({}, ends=("<|im_end|>",), thinks=False), rescue=True)
    assert [(call.name, call.arguments) for call in read(form, [text])[0].calls] == [OSLO, ROME]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:40])
def test_what_is_shown_stays_text(form: Format, text: str) -> None:
    message, told = read(form, [text])
    assert (message.calls, message.content, told.strip()) == ((), text, text)


@pytest.mark.parametrize(("half", "name"), HALVES)
def test_half_a_call_behind_another_is_a_call_that_is_cut_off(form: Format, half: str, name: str) -> None:
    message, told = read(form, [f"I look.\n{CALL}{half}"])
    assert [(call.name, call.error) for call in message.calls] == [("get_weather", None), (name, CUT_OFF)]
    assert (message.content, told.strip()) == ("I look.", "I look.")


@pytest.mark.parametrize("half", [*(half for half, _ in HALVES), "\nso 1 < 2", "\n```json\n"])
def test_nothing_is_cut_off_where_the_message_goes_on_with_a_call_of_the_format(half: str) -> None:
    text = f"I look.\n{CALL}{half}\n<tool_call>{OTHER}</tool_call>"
    for parts in cuts(text, 0, 6):
        message, told = read(replace(FAMILIES["hermes"].fit({}), rescue=True), parts)
        assert [(call.name, call.arguments) for call in message.calls] == [OSLO, ROME]
        assert message.content == told.strip() == f"I look.\n{half.strip()}"


def test_a_call_stands_alone_beside_calls() -> None:
    unfit = '{"name": "get_weather", "arguments": {"town": "Oslo"}}'
    for text in (f"{CALL}<tool_call>{OTHER}</tool_call>{unfit}", f"<tool_call>{OTHER}</tool_call>{CALL}{unfit}"):
        message, _ = read(replace(FAMILIES["hermes"].fit({}), rescue=True), [text])
        assert [call.arguments for call in message.calls].count({"town": "Oslo"}) == 1, text
        assert message.content == ""


def test_a_call_of_a_list_that_is_read_in_another_spelling_is_told_as_it_is_kept() -> None:
    form = replace(FAMILIES["mistral-spaced"].fit({}), rescue=True)
    for parts in cuts(f"[TOOL_CALLS] [{CALL}, [{OTHER}]]", 0, 6):
        parser = form.parser(tools=TOOLS)
        deltas = [*(delta for part in parts for delta in parser.feed(part)), *parser.end()]
        calls = parser.finish().calls
        assert [(call.name, call.arguments) for call in calls] == [OSLO, ROME]
        assert tuple(delta.call for delta in deltas if isinstance(delta, CallClosed)) == calls


@pytest.mark.parametrize("text", [*(row[0] for row in CALLS), *TEXTS], ids=lambda text: text[:40])
def test_cuts_do_not_matter(form: Format, text: str) -> None:
    whole = read(form, [text])[0]
    for parts in cuts(text, random.Random(0), 6):
        assert read(form, list(parts))[0] == whole


def test_text_is_held_back_only_where_it_may_be_a_call() -> None:
    parser = replace(FAMILIES["hermes"].fit({}), rescue=True).parser(tools=TOOLS)
    told = [
        "".join(delta.text for delta in parser.feed(part) if isinstance(delta, TextDelta))
        for part in ("The weather", " is {fine", "} in [Oslo", "] at ```", 'js\n{"a"', ": 1}", "\nget_w", "ay(1)")
    ]
    assert "".join(told) == 'The weather is {fine} in [Oslo] at ```js\n{"a": 1}\nget_way(1)'
    assert sum(map(bool, told)) >= 6


@pytest.mark.parametrize("rescue", [True, False])
def test_what_was_not_told_is_held(rescue: bool) -> None:
    parser, told, text = replace(FAMILIES["hermes"].fit({}), rescue=rescue).parser(tools=TOOLS), "", ""
    for character in 'If a {"type" or <tool_ca':
        text += character
        told += "".join(delta.text for delta in parser.feed(character) if isinstance(delta, TextDelta))
        assert (told + parser.held).split() == text.split()
    assert parser.held.endswith("<tool_ca")
    parser.feed("ll>" + CALL[:9])
    assert (parser.in_call, parser.held) == (True, "")


@pytest.mark.parametrize("begun", ["<b then", "<Mon", "[[", "```json", "get_w", '{"type": "city"}', '{"id": 1'])
def test_text_that_might_be_a_call_is_told_before_the_call_that_follows(begun: str) -> None:
    for parts in cuts(f"If a\n{begun}\n<tool_call>{CALL}</tool_call>", 0, 6):
        parser = replace(FAMILIES["hermes"].fit({}), rescue=True).parser(tools=TOOLS)
        deltas = [delta for part in parts for delta in parser.feed(part)]
        opened = next(i for i, delta in enumerate(deltas) if isinstance(delta, CallOpened))
        assert "".join(delta.text for delta in deltas[:opened] if isinstance(delta, TextDelta)) == f"If a\n{begun}"
        assert all(isinstance(delta, ArgumentsDelta | CallClosed) for delta in [*deltas[opened + 1 :], *parser.end()])
        assert parser.finish().content == f"If a\n{begun}"


def test_calls_in_two_spellings_are_in_the_order_in_which_they_are_written() -> None:
    text = f"I look.\n```json\n{OTHER}\n```\n<tool_call>{CALL}</tool_call>"
    for parts in cuts(text, 0, 6):
        message, told = read(replace(FAMILIES["hermes"].fit({}), rescue=True), parts)
        assert [(call.name, call.arguments) for call in message.calls] == [ROME, OSLO]
        assert message.content == told.strip() == "I look."


@pytest.mark.parametrize(
    "beginning",
    ["{", "[", "[{", "{ [", "`", "```", "```json\n", "<", "<tool ", "<tool_call>", '{"', "get_weather", "[TOOL_CALLS]"],
)
def test_what_leads_nowhere_is_not_held_for_long(beginning: str) -> None:
    """So each character is looked at a bounded number of times."""
    dressed = DressedCalls(TOOLS)
    told = sum(len(dressed.feed(beginning)) for _ in range(3000 // len(beginning)))
    assert told > 2500
    assert len(dressed.held) < 500


@pytest.mark.parametrize("behind", ["`" * 96, "</|a>" * 19, "<|>" * 32, "\n```" * 24])
def test_what_stands_behind_an_open_call_is_looked_through_in_one_way(behind: str) -> None:
    """In two ways each, a hundred characters take longer than any limit."""
    assert unclosed(CALL[:-1] + behind, 0) == (CALL[:-1], CALL)
    assert unclosed(CALL[:-1] + behind + "x", 0) == ("", "")


@pytest.mark.parametrize("depth", [40, 700, 900, 3000])
def test_lists_in_lists_are_read_as_far_as_they_can_be(depth: int) -> None:
    dressed = DressedCalls(TOOLS)
    text = "[" * depth + CALL + "]" * depth
    assert dressed.feed(text) == "" or depth > 40
    assert [call.name for call in dressed.end().calls] in ([], ["get_weather"])


def test_without_tools_or_rescue_there_are_no_calls() -> None:
    form = FAMILIES["hermes"].fit({})
    for parser in (replace(form, rescue=True).parser(), form.parser(tools=TOOLS)):
        parser.feed(CALL)
        assert parser.finish().calls == ()


@pytest.mark.parametrize(
    ("written", "called"),
    [("read", "read"), ("Read", "Read"), ("READ", None), ("get_x", "get_x"), ("get-x", "get-x"), ("GET X", None)],
)
def test_of_tools_whose_names_are_nearly_the_same_the_one_that_is_named_is_called(
    form: Format, written: str, called: str | None
) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("read", "Read", "get_x", "get-x")]
    parser = form.parser(tools=tools)
    parser.feed(json.dumps({"name": written, "arguments": {}}))
    assert [call.name for call in parser.finish().calls] == ([] if called is None else [called])


def test_what_stands_in_the_prompt_is_text() -> None:
    form = replace(FAMILIES["hermes"].fit({}), rescue=True)
    parser = form.parser(prefix=f"<|im_start|>assistant\n{CALL}\n", tools=TOOLS)
    parser.feed(OTHER)
    assert [call.arguments for call in parser.finish().calls] == [{"city": "Rome"}]


CUT_LISTS = [
    ("[{", [], ""),
    ('[{"name": "get_weather", "argu', [("get_weather", CUT_OFF)], ""),
    (f"[{CALL}, {{", [("get_weather", None), ("", CUT_OFF)], ""),
    (f'[{CALL}, {{"name": "now", "arguments": {{', [("get_weather", None), ("now", CUT_OFF)], ""),
    ('[{"name": "answer", "arguments": {"te', [], ""),
    ('[{"name": "answer", "arguments": {"text": "It \\"has\\" 3', [], 'It "has" 3'),
    (f'[{CALL}, {{"name": "answer", "arguments": {{"text": "I lo', [("get_weather", None)], "I lo"),
]


@pytest.mark.parametrize("before", ["", "```json\n"])
@pytest.mark.parametrize(("text", "calls", "content"), CUT_LISTS)
def test_a_generic_message_that_is_cut_off_is_no_text(
    before: str, text: str, calls: list[tuple[str, str | None]], content: str
) -> None:
    generic = FAMILIES["generic"].fit({}, ends=("<|im_end|>",), thinks=False)
    message, told = read(replace(generic, rescue=True), [before + text])
    assert [(call.name, call.error) for call in message.calls] == (calls or [("", CUT_OFF)] * (text == "[{"))
    assert (message.content, told) == (content, content)


def test_generic_calls_are_read_as_they_are_written() -> None:
    form = FAMILIES["generic"].fit({})
    calls = [OSLO, ("math.add", {"a": 1, "b": 2.5})]
    message = form.parse(form.write("I look.", calls), tools=TOOLS)
    assert [(call.name, call.arguments, call.rescued) for call in message.calls] == [(*call, None) for call in calls]
    assert message.content == "I look."


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_generic_messages_keep_to_an_output(choice: str) -> None:
    schema = {"type": "object", "properties": {"degrees_of_it": {"type": "integer"}}}
    assert "degrees_of_it" in FAMILIES["generic"].fit({}).grammar(TOOLS, output=schema, choice=choice)


def test_a_call_without_the_closing_marker_of_its_format_may_be_cut_off() -> None:
    hermes, plain = (replace(FAMILIES[name].fit({}), rescue=True) for name in ("hermes", "plain"))
    assert [call.error for call in hermes.parse(f"<tool_call>\n{CALL}", tools=TOOLS).calls] == ["the call is cut off"]
    assert [call.error for call in plain.parse(f"<tool_call>\n{CALL}", tools=TOOLS).calls] == [None]
