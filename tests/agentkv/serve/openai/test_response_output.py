"""Items of a response: what the model thought, said and called, in the order in which it came."""

from __future__ import annotations

from typing import Any

import pytest
from agentkv_runtime.formats.parsed import (
    ArgumentsDelta,
    CallClosed,
    CallOpened,
    ParsedCall,
    ReasoningDelta,
    TextDelta,
)
from prometheus_client import Counter

from agentkv._chat.conversation import Conversation
from agentkv.serve.http.errors import ApiError
from agentkv.serve.http.ignored import Ignored
from agentkv.serve.openai.items import ResponseOutput, messages_of, read_items
from agentkv.serve.reply import ReplyChunk

STRICT = Ignored(Counter("left_out", "Nothing.", ["what"], registry=None), strict=True)
THOUGHT_AND_CALLED = [
    ReplyChunk([ReasoningDelta("Where "), ReasoningDelta("is it?")]),
    ReplyChunk([TextDelta("I look.")]),
    ReplyChunk([CallOpened(0, "weather"), ArgumentsDelta(0, '{"city": '), ArgumentsDelta(0, '"Oslo"}')]),
    ReplyChunk([CallClosed(0, ParsedCall("weather", {"city": "Oslo"})), CallOpened(1, "clock")]),
]


def told(cut: bool) -> tuple[list[Any], list[Any]]:
    output = ResponseOutput(Conversation(first_call=3).call_id, logprobs=False)
    events = [event for part in THOUGHT_AND_CALLED for event in output.read(part)]
    return [*events, *output.end(cut)], output.items


def test_every_item_is_opened_told_and_closed() -> None:
    events, items = told(cut=False)
    assert [(event.type.removeprefix("response."), event.output_index) for event in events] == [
        ("output_item.added", 0),
        ("content_part.added", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("content_part.added", 1),
        ("output_text.delta", 1),
        ("output_text.done", 1),
        ("content_part.done", 1),
        ("output_item.done", 1),
        ("output_item.added", 2),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.done", 2),
        ("output_item.done", 2),
        ("output_item.added", 3),
        ("function_call_arguments.done", 3),
        ("output_item.done", 3),
    ]
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "function_call"]
    assert items[0]["content"] == [{"type": "reasoning_text", "text": "Where is it?"}]
    assert items[2]["arguments"] == '{"city": "Oslo"}'
    assert [item["call_id"] for item in items[2:]] == ["call00003", "call00004"]
    assert len({item["id"] for item in items}) == 4
    for event in events:
        if hasattr(event, "item_id"):
            assert event.item_id == items[event.output_index]["id"]


def test_only_the_item_that_was_cut_is_incomplete() -> None:
    _, items = told(cut=True)
    assert [item["status"] for item in items] == ["completed", "completed", "completed", "incomplete"]


def test_items_that_come_back_are_one_message() -> None:
    _, items = told(cut=False)
    result = {"type": "function_call_output", "call_id": "call00003", "output": [{"type": "input_text", "text": "7"}]}
    question = {"role": "developer", "content": "Be brief."}
    read = read_items([question, *items, result, {"role": "assistant", "content": "It is 7."}], STRICT)
    assert messages_of(read) == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Where is it?",
            "tool_calls": [
                {
                    "type": "function",
                    "id": "call00003",
                    "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
                },
                {"type": "function", "id": "call00004", "function": {"name": "clock", "arguments": ""}},
            ],
        },
        {"role": "tool", "tool_call_id": "call00003", "content": "7"},
        {"role": "assistant", "content": "It is 7."},
    ]


@pytest.mark.parametrize("kind", ["computer_call", "mcp_call", "", 7, ["message"]])
def test_items_of_other_kinds_are_named(kind: object) -> None:
    with pytest.raises(ApiError) as refused:
        read_items([{"role": "user", "content": "x"}, {"type": kind}], STRICT)
    assert refused.value.param == "input.1.type"
