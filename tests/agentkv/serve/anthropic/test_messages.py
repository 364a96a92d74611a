"""Anthropic's Messages over a real server, whole, by the real package."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

import agentkv as kv

from ....runtime.chat_styles import THINKING
from ...conftest import WithTemplate
from ..conftest import Served, serving_of
from .weather import ANSWER, ASKED, GREEDY, QUESTION, RESULT, SYSTEM, TWO, WEATHER, result

pytestmark = pytest.mark.anyio


class Order(BaseModel):
    order: str
    customer: str
    total: int


async def test_a_tool_is_called_and_its_result_answered_prefilling_only_what_is_new(served: Served) -> None:
    create = served.anthropic.messages.create
    first = await create(messages=[QUESTION], **ASKED)
    assert (first.stop_reason, first.stop_sequence) == ("tool_use", None)
    (call,) = first.content
    assert (call.type, call.name, call.input) == ("tool_use", "weather", {"city": "Oslo"})
    assert first.usage.cache_read_input_tokens == 0
    before = served.ctx.stats.prefilled
    messages = [QUESTION, {"role": "assistant", "content": first.content}, result(call.id)]
    second = await create(messages=messages, **ASKED)
    assert second.stop_reason == "end_turn"
    assert [block.text for block in second.content] == [ANSWER]
    assert second.usage.cache_read_input_tokens == first.usage.input_tokens + first.usage.output_tokens
    new = second.usage.input_tokens
    assert 0 < new < first.usage.input_tokens
    assert served.ctx.stats.prefilled - before == new + 1  # with the token that ended the first message


async def test_marks_for_the_cache_and_blocks_for_texts_change_nothing(served: Served) -> None:
    create, mark = served.anthropic.messages.create, {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    first = await create(messages=[QUESTION], **ASKED)
    marked = {
        **ASKED,
        "system": [{"type": "text", "text": SYSTEM, **mark}],
        "tools": [{**WEATHER, **mark}],
        "cache_control": {"type": "ephemeral"},
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
    }
    question = {"role": "user", "content": [{"type": "text", "text": QUESTION["content"], **mark}]}
    again = await create(messages=[question], **marked)
    assert again.content == first.content
    assert again.usage.input_tokens <= 1  # all of it is retained
    calling = {"role": "assistant", "content": [{**first.content[0].to_dict(), **mark}]}
    answered = await create(messages=[question, calling, result(first.content[0].id, **mark)], **marked)
    assert answered.content[0].text == ANSWER


async def test_a_tool_runner_of_the_package_does_its_loop(served: Served) -> None:
    asked = []

    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return RESULT

    runner = served.anthropic.beta.messages.tool_runner(
        model="nano", max_tokens=200, system=SYSTEM, tools=[weather], messages=[QUESTION], extra_body=GREEDY
    )
    last = await runner.until_done()
    assert (asked, last.content[0].text) == (["Oslo"], ANSWER)


async def test_an_error_of_a_tool_is_told_as_one(served: Served) -> None:
    create = served.anthropic.messages.create
    first = await create(messages=[QUESTION], **ASKED)
    failed = result(first.content[0].id, [{"type": "text", "text": "unknown city Oslo, try Bergen"}], is_error=True)
    second = await create(messages=[QUESTION, {"role": "assistant", "content": first.content}, failed], **ASKED)
    assert [block.input for block in second.content if block.type == "tool_use"] == [{"city": "Bergen"}]


async def test_choices_of_tools(served: Served) -> None:
    async def made(choice: dict[str, Any], question: dict[str, str] = TWO) -> list[Any]:
        message = await served.anthropic.messages.create(messages=[question], tool_choice=choice, **ASKED)
        return [block for block in message.content if block.type == "tool_use"]

    assert [call.input for call in await made({"type": "auto"})] == [{"city": "Tolvik"}, {"city": "Brasno"}]
    assert len(await made({"type": "auto", "disable_parallel_tool_use": True})) == 1
    assert await made({"type": "none"}) == []
    hello = {"role": "user", "content": "Who are you?"}
    assert await made({"type": "auto"}, hello) == []
    assert len(await made({"type": "any"}, hello)) >= 1
    assert [call.name for call in await made({"type": "tool", "name": "weather"}, hello)] == ["weather"]


async def test_an_answer_of_a_type(served: Served) -> None:
    message = await served.anthropic.messages.parse(
        model="nano",
        max_tokens=200,
        system="Answer as JSON: " + json.dumps(Order.model_json_schema()),
        messages=[{"role": "user", "content": "Order XO9619: 17 Lumora for Mirela, 20 EUR in all."}],
        output_format=Order,
        extra_body=GREEDY,
    )
    assert message.parsed_output == Order(order="XO9619", customer="Mirela", total=20)


async def test_why_a_message_ends(served: Served) -> None:
    messages = [QUESTION, {"role": "assistant", "content": [_call("c1")]}, result("c1")]
    create = served.anthropic.messages.create
    cut = await create(messages=messages, **{**ASKED, "max_tokens": 2})
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)
    stopped = await create(messages=messages, **{**ASKED, "extra_body": {**GREEDY, "stop_sequences": ["x", " and"]}})
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " and")
    assert stopped.content[0].text == "It is 4 degrees"


async def test_a_message_that_does_not_fit_the_cache_says_so() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 1000}
    output = {"format": {"type": "json_schema", "schema": schema}}
    async with kv.Context.open(kv.models.nano(), capacity=128) as ctx, serving_of(ctx) as served:
        full = await served.anthropic.messages.create(
            model="nano", max_tokens=1000, messages=[QUESTION], output_config=output
        )
        assert full.stop_reason == "model_context_window_exceeded"
        assert 0 < full.usage.output_tokens < 128


async def test_tokens_are_counted_as_a_message_uses_them(served: Served) -> None:
    counted = await served.anthropic.messages.count_tokens(
        model="nano", system=SYSTEM, tools=[WEATHER], messages=[QUESTION]
    )
    message = await served.anthropic.messages.create(messages=[QUESTION], **ASKED)
    assert counted.input_tokens == message.usage.input_tokens
    long = {"role": "user", "content": "Oslo " * 20000}
    more = await served.anthropic.messages.count_tokens(model="nano", messages=[long])
    assert more.input_tokens > served.ctx.stats.capacity


async def test_several_messages_of_one_role_are_one(served: Served) -> None:
    parts = [{"type": "text", "text": "What is the weather"}, {"type": "text", "text": " in Oslo?"}]
    one = await served.anthropic.messages.count_tokens(model="nano", messages=[{"role": "user", "content": parts}])
    two = await served.anthropic.messages.count_tokens(
        model="nano", messages=[{"role": "user", "content": [part]} for part in parts]
    )
    assert one.input_tokens == two.input_tokens


async def test_thinking(with_template: WithTemplate) -> None:
    said = ["<think>\nhm, 4\n</think>\n\nIt is 4.", "It is 5."]
    async with kv.testing.replies(said, with_template(THINKING), capacity=512) as ctx, serving_of(ctx) as served:
        asked: dict[str, Any] = {"model": "nano", "max_tokens": 100, "extra_body": GREEDY}
        question = {"role": "user", "content": "What is 2 + 2?"}
        create = served.anthropic.messages.create
        first = await create(messages=[question], thinking={"type": "adaptive"}, **asked)
        thought, text = first.content
        assert (thought.type, thought.thinking, text.text) == ("thinking", "hm, 4", "It is 4.")
        messages = [question, {"role": "assistant", "content": first.content}, {"role": "user", "content": "And 5?"}]
        second = await create(messages=messages, thinking={"type": "disabled"}, **asked)
        assert [block.type for block in second.content] == ["text"]
        with pytest.raises(anthropic.BadRequestError, match=r"max_tokens is 100, .* than thinking\.budget_tokens"):
            await create(messages=messages, thinking={"type": "enabled", "budget_tokens": 1024}, **asked)


def _call(name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "weather", "input": {"city": "Oslo"}}
