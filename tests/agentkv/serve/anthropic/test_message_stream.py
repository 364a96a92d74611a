"""Anthropic's Messages as events, by the real package and by plain lines."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import httpx
import pytest

import agentkv as kv

from ....runtime.chat_styles import THINKING
from ...conftest import WithTemplate
from ..conftest import Served, serving_of
from .weather import ANSWER, ASKED, GREEDY, QUESTION, TWO, result

pytestmark = pytest.mark.anyio

ENDLESS: dict[str, Any] = {
    "model": "nano",
    "max_tokens": 4000,
    "messages": [QUESTION],
    "stream": True,
    "output_config": {
        "format": {"type": "json_schema", "schema": {"type": "array", "items": {"type": "integer"}, "minItems": 4000}}
    },
}


async def events_of(response: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream: names and data."""
    lines = [line async for line in response.aiter_lines() if line]
    names = [line.removeprefix("event: ") for line in lines[::2]]
    return list(zip(names, (json.loads(line.removeprefix("data: ")) for line in lines[1::2]), strict=True))


async def test_a_loop_of_calls_prefills_only_what_is_new(served: Served) -> None:
    async with served.anthropic.messages.stream(messages=[TWO], **ASKED) as stream:
        first = await stream.get_final_message()
    assert first.stop_reason == "tool_use"
    assert [call.input for call in first.content] == [{"city": "Tolvik"}, {"city": "Brasno"}]
    before = served.ctx.stats.prefilled
    results = [block for call in first.content for block in result(call.id)["content"]]
    messages = [TWO, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    async with served.anthropic.messages.stream(messages=messages, **ASKED) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        second = await stream.get_final_message()
    assert second.stop_reason == "end_turn"
    assert [block.text for block in second.content] == [text]
    assert "Tolvik" in text
    assert "Brasno" in text
    assert second.usage.cache_read_input_tokens == first.usage.input_tokens + first.usage.output_tokens
    assert served.ctx.stats.prefilled - before == second.usage.input_tokens + 1


async def test_a_stream_says_what_the_whole_message_does(served: Served) -> None:
    messages = [QUESTION]
    for _ in range(2):
        whole = await served.anthropic.messages.create(messages=messages, **ASKED)
        async with served.anthropic.messages.stream(messages=messages, **ASKED) as stream:
            streamed = await stream.get_final_message()
        assert [block.to_dict() for block in streamed.content] == [block.to_dict() for block in whole.content]
        assert (streamed.stop_reason, streamed.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
        if whole.stop_reason == "tool_use":
            messages = [QUESTION, {"role": "assistant", "content": whole.content}, result(whole.content[0].id)]
    assert [block.text for block in whole.content] == [ANSWER]


async def test_the_order_of_events(served: Served) -> None:
    body = {**{key: value for key, value in ASKED.items() if key != "extra_body"}, **GREEDY}
    async with served.http.stream("POST", "/v1/messages", json={**body, "messages": [TWO], "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["request-id"].startswith("req_")
        events = await events_of(response)
    names = [name for name, _ in events]
    assert names == [data["type"] for _, data in events]
    start, end = events[0][1]["message"], events[-2][1]
    assert (names[0], names[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    assert end["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert end["usage"]["output_tokens"] > 0
    opened: int | None = None
    texts: dict[int, str] = {}
    for name, data in events[1:-2]:
        if name == "content_block_start":
            assert opened is None
            assert data["index"] == len(texts)
            assert data["content_block"]["input"] == {}
            opened = data["index"]
            texts[data["index"]] = ""
        elif name == "content_block_stop":
            assert data["index"] == opened
            opened = None
        else:
            assert (data["index"], data["delta"]["type"]) == (opened, "input_json_delta")
            texts[data["index"]] += data["delta"]["partial_json"]
    assert opened is None
    assert [json.loads(text) for text in texts.values()] == [{"city": "Tolvik"}, {"city": "Brasno"}]


async def test_thinking_comes_in_a_block_before_the_text(with_template: WithTemplate) -> None:
    said = ["<think>\nhm, 4\n</think>\n\nIt is 4."]
    async with kv.testing.replies(said, with_template(THINKING), capacity=512) as ctx, serving_of(ctx) as served:
        body = {"model": "nano", "max_tokens": 100, "messages": [QUESTION], "thinking": {"type": "adaptive"}}
        async with served.http.stream("POST", "/v1/messages", json={**body, "stream": True}) as response:
            events = await events_of(response)
    kinds = [data["content_block"]["type"] for name, data in events if name == "content_block_start"]
    assert kinds == ["thinking", "text"]
    deltas = [data["delta"] for name, data in events if name == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == "hm, 4"
    assert "".join(delta.get("text", "") for delta in deltas) == "It is 4."


async def test_a_client_that_hangs_up_frees_the_branch(served: Served) -> None:
    async with served.http.stream("POST", "/v1/messages", json=ENDLESS) as response:
        async for line in response.aiter_lines():
            if "content_block_delta" in line:
                break
        assert served.server.admission.running == 1
    await served.until_idle()
    assert served.ctx.branches == []
    assert served.ctx.stats.generated < 4000


async def test_an_error_after_the_beginning_is_an_event(served: Served) -> None:
    async with served.http.stream("POST", "/v1/messages", json=ENDLESS) as response:
        lines = response.aiter_lines()
        assert await anext(lines) == "event: message_start"
        drained = asyncio.create_task(served.server.admission.drain(0))
        rest = [line async for line in lines if line]
    assert await drained == 1
    assert rest[-2] == "event: error"
    error = json.loads(rest[-1].removeprefix("data: "))
    assert (error["type"], error["error"]["type"]) == ("error", "overloaded_error")
    assert error["request_id"] == response.headers["request-id"]


async def test_the_package_raises_what_a_stream_ends_with(served: Served) -> None:
    stream = await served.anthropic.messages.create(**ENDLESS)
    assert (await anext(aiter(stream))).type == "message_start"
    await served.server.admission.drain(0)
    with pytest.raises(anthropic.APIStatusError, match="the server is stopping"):
        _ = [event async for event in stream]
