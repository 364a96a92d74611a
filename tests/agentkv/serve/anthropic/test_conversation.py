"""Anthropic's conversations in OpenAI's form."""

from __future__ import annotations

from typing import Any

import pytest

from agentkv.serve.anthropic.messages_body import CountRequest, openai_messages
from agentkv.serve.http.errors import Refused


def made(messages: list[dict[str, Any]], system: Any = ()) -> list[dict[str, Any]]:
    body = CountRequest.model_validate({"model": "m", "messages": messages, "system": system or []})
    return openai_messages(body.system, body.messages)


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def call(id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "f", "input": arguments, "caller": {"type": "direct"}}


def result(id: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def test_a_conversation_with_thoughts_calls_and_results() -> None:
    turn = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        text("Well, "),
        text("so:"),
        call("a", x=1),
        call("b"),
    ]
    results = [result("b", [text("B"), text("!")]), result("a", "A", is_error=True), text("Go"), text(" on")]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": turn},
        {"role": "user", "content": results},
    ]
    assert made(messages, "Be kind.") == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "Well, so:",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
                {"id": "b", "type": "function", "function": {"name": "f", "arguments": {}}},
            ],
        },
        {"role": "tool", "tool_call_id": "b", "content": "B!"},
        {"role": "tool", "tool_call_id": "a", "content": '{"error": "A"}'},
        {"role": "user", "content": [text("Go"), text(" on")]},
    ]


def test_a_text_is_the_same_as_its_block() -> None:
    marked = {**text("Hi"), "cache_control": {"type": "ephemeral"}}
    assert made([{"role": "user", "content": "Hi"}], "S") == made([{"role": "user", "content": [marked]}], [text("S")])


def test_several_messages_of_one_role_are_one() -> None:
    said = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    calls = [{"role": "assistant", "content": "c"}, {"role": "assistant", "content": [call("x")]}]
    results = [{"role": "user", "content": [result("x", "1")]}, {"role": "user", "content": "d"}]
    first, turn, told, last = made([*said, *calls, *results])
    assert first["content"] == [text("a"), text("b")]
    assert (turn["content"], len(turn["tool_calls"])) == ("c", 1)
    assert (told["role"], last) == ("tool", {"role": "user", "content": "d"})


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([("user", "a"), ("assistant", [text("b"), call("x")])], "messages.1.content.1"),
        ([("user", [])], "messages.0.content"),
        ([("user", [call("x")])], "messages.0.content.0"),
        ([("user", "a"), ("assistant", [result("x", "")]), ("user", "b")], "messages.1.content.0"),
        ([("user", "a"), ("assistant", [text("b"), call("x")]), ("user", "c")], "messages.1.content.1"),
        ([("user", "a"), ("assistant", [call("x")]), ("user", [result("y", "")])], "messages.2.content.0.tool_use_id"),
        (
            [("user", "a"), ("assistant", [call("x")]), ("user", [result("x", ""), result("x", "")])],
            "messages.2.content.1.tool_use_id",
        ),
        ([("user", "a"), ("assistant", [call("x")]), ("system", [result("x", "")])], "messages.2.content.0"),
    ],
)
def test_what_cannot_be(messages: list[tuple[str, Any]], where: str) -> None:
    with pytest.raises(Refused) as raised:
        made([{"role": role, "content": content} for role, content in messages])
    assert raised.value.param == where
