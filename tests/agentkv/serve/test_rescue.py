"""Calls in another spelling than the model's format, over HTTP: those of any call; none where none may be made."""

from __future__ import annotations

import json
from typing import Any

import pytest

import agentkv as kv

from .conftest import serving_of

pytestmark = pytest.mark.anyio

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "description": "Weather.", "parameters": CITY}}
ASKED: list[Any] = [{"role": "user", "content": "How is the weather in Oslo?"}]
CALL = json.dumps({"name": "weather", "arguments": {"city": "Oslo"}})
FENCED = f"I look.\n```json\n{CALL}\n```"


@pytest.mark.parametrize(
    ("options", "calls", "content"),
    [
        ({}, 1, "I look."),
        ({"logprobs": True, "top_logprobs": 2}, 1, "I look."),
        ({"n": 2}, 1, "I look."),
        ({"max_tokens": 12}, 0, None),
        ({"stop": "Oslo"}, 0, FENCED.partition("Oslo")[0]),
        ({"stop": "}}"}, 0, FENCED.partition("}}")[0]),
    ],
    ids=str,
)
async def test_a_call_is_one_whole_or_streamed(options: dict[str, Any], calls: int, content: str | None) -> None:
    async with kv.testing.replies(lambda _: FENCED) as ctx, serving_of(ctx) as site:
        ask = {"model": "nano", "messages": ASKED, "tools": [WEATHER]} | options
        whole = await site.openai.chat.completions.create(**ask)
        ctx._core.chat.habits.rescued = 0  # not steered yet
        told: dict[int, str] = {}
        made: dict[int, list[Any]] = {}
        async for chunk in await site.openai.chat.completions.create(**ask, stream=True):
            for choice in chunk.choices:
                told[choice.index] = told.get(choice.index, "") + (choice.delta.content or "")
                made.setdefault(choice.index, []).extend(choice.delta.tool_calls or [])
        for choice in whole.choices:
            message = choice.message
            assert len(message.tool_calls or []) == calls == len({call.index for call in made[choice.index]})
            assert (choice.finish_reason == "tool_calls") == bool(calls)
            assert (message.content or "").strip() == told[choice.index].strip()
            if content is not None:
                assert told[choice.index].strip() == content.strip()
            for call in message.tool_calls or []:
                streamed = "".join(part.function.arguments or "" for part in made[choice.index])
                assert json.loads(call.function.arguments) == json.loads(streamed) == {"city": "Oslo"}


@pytest.mark.parametrize("reply", [FENCED, CALL, 'weather(city="Oslo")'])
async def test_a_conversation_goes_on_behind_it(reply: str) -> None:
    async with kv.testing.replies([reply, "It has 3 degrees."]) as ctx, serving_of(ctx) as site:
        first = await site.openai.chat.completions.create(model="nano", messages=ASKED, tools=[WEATHER])
        (call,) = first.choices[0].message.tool_calls or []
        said = first.choices[0].message.model_dump(exclude_none=True)
        result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
        second = await site.openai.chat.completions.create(
            model="nano", messages=[*ASKED, said, result], tools=[WEATHER]
        )
        assert second.choices[0].message.content == "It has 3 degrees."
        assert first.usage is not None
        assert second.usage is not None
        assert second.usage.prompt_tokens_details is not None
        assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= first.usage.total_tokens - 2
