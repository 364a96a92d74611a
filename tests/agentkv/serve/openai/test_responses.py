"""Responses by the real `openai` package: items, tools, formats, streams, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from ..conftest import Serve, Served

pytestmark = pytest.mark.anyio

SYSTEM = "You are Nano, a desk agent."
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": CITY,
    "strict": True,
}
ASKED: dict[str, Any] = {"model": "nano", "instructions": SYSTEM, "tools": [WEATHER], "temperature": 0}


class Person(BaseModel):
    name: str
    age: int


def result(call: Any, **said: Any) -> Any:
    return {"type": "function_call_output", "call_id": call.call_id, "output": json.dumps(said)}


async def test_a_turn_with_a_tool_by_items_that_come_back(served: Served) -> None:
    first = await served.openai.responses.create(
        **ASKED, input="What is the weather in Oslo?", metadata={"run": "7"}, store=False
    )
    assert first.status == "completed"
    assert first.metadata == {"run": "7"}
    [call] = first.output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Oslo"})
    history: Any = [
        {"role": "user", "content": "What is the weather in Oslo?"},
        *first.output,
        result(call, temp=7, sky="rainy"),
    ]
    before = served.ctx.stats.prefilled
    second = await served.openai.responses.create(**ASKED, input=history, store=False)
    assert second.output_text == "It is 7 degrees and rainy in Oslo."
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens == first.usage.total_tokens
    new = second.usage.input_tokens - first.usage.total_tokens
    assert served.ctx.stats.prefilled - before == new + 1  # and the last token that was drawn
    assert second.usage.total_tokens == second.usage.input_tokens + second.usage.output_tokens


async def test_a_stream_tells_the_same_as_the_whole_in_the_protocols_order(served: Served) -> None:
    whole = await served.openai.responses.create(**ASKED, input="What is the weather in Oslo?")
    events = []
    async with served.openai.responses.stream(**ASKED, input="What is the weather in Oslo?") as stream:
        async for event in stream:
            events.append(event)
        final = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        *["response.function_call_arguments.delta"] * len(deltas),
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event.delta for event in deltas) == whole.output[0].arguments  # type: ignore[union-attr]
    assert final.output[0].to_dict().keys() >= {"call_id", "arguments"}
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.output_tokens == whole.usage.output_tokens


async def test_text_streams_as_parts_with_logprobs(served: Served) -> None:
    events = []
    asked: dict[str, Any] = {"model": "nano", "input": "Who are you?", "temperature": 0, "top_logprobs": 2}
    async with served.openai.responses.stream(**asked, include=["message.output_text.logprobs"]) as stream:
        async for event in stream:
            events.append(event)
        final = await stream.get_final_response()
    kinds = [event.type for event in events]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * len(deltas),
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    text = final.output[0].content[0]  # type: ignore[union-attr]
    assert "".join(event.delta for event in deltas) == final.output_text != ""
    logprobs = text.logprobs  # type: ignore[union-attr]
    assert b"".join(bytes(each.bytes) for each in logprobs).decode().strip() == final.output_text.strip()
    assert all(len(each.top_logprobs) == 2 for each in logprobs)
    assert [each.token for event in deltas for each in event.logprobs] == [each.token for each in logprobs]


async def test_a_schema_holds_the_text(served: Served) -> None:
    parsed = await served.openai.responses.parse(
        model="nano", input="Mara is 41 years old.", text_format=Person, temperature=0
    )
    assert isinstance(parsed.output_parsed, Person)
    assert parsed.text is not None
    assert parsed.text.format is not None
    assert parsed.text.format.type == "json_schema"
    free = await served.openai.responses.create(
        model="nano",
        input="Mara is 41.",
        text={"format": {"type": "json_object"}},
        max_output_tokens=400,
        temperature=0,
    )
    assert free.status == "incomplete" or isinstance(json.loads(free.output_text), dict)


async def test_tool_choice_and_the_end_of_tokens(served: Served) -> None:
    none = await served.openai.responses.create(**ASKED, input="What is the weather in Oslo?", tool_choice="none")
    assert [item.type for item in none.output] == ["message"]
    named: Any = {"type": "function", "name": "weather"}
    one = await served.openai.responses.create(**ASKED, input="Who are you?", tool_choice=named)
    assert one.output[0].type == "function_call"
    cut = await served.openai.responses.create(model="nano", input="Who are you?", max_output_tokens=2, temperature=0)
    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    assert cut.output[0].status == "incomplete"  # type: ignore[union-attr]
    kinds = []
    asked: Any = {"model": "nano", "input": "Who are you?", "max_output_tokens": 2, "temperature": 0}
    async for event in await served.openai.responses.create(**asked, stream=True):
        kinds.append(event.type)
    assert kinds[-1] == "response.incomplete"


REFUSED = [
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"truncation": "auto"}, "truncation"),
    ({"max_tool_calls": 3}, "max_tool_calls"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ({"input": []}, "input"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0.type"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "wrong"}}}}, "text.format"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]}, "input"),
    ({"tools": [{"type": "function", "name": "f", "parameters": {"properties": -1}}]}, "tools"),
    ({"metadata": {"k": "v" * 513}}, "metadata.k"),
    ({"model": "gpt-5"}, "model"),
]
REFUSED_STRICTLY = [
    ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
    ({"include": ["reasoning.encrypted_content"]}, "include.0"),
    ({"reasoning": {"effort": "low"}}, "reasoning_effort"),
    ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"stream_options": {}}, "stream_options"),
]


@pytest.mark.parametrize(("wrong", "param"), REFUSED)
async def test_what_cannot_be_done_is_refused_by_name(served: Served, wrong: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        await served.openai.responses.create(**{"model": "nano", "input": "hi"} | {}, extra_body=wrong)
    assert refused.value.status_code in (400, 404)
    assert refused.value.body["param"] == param  # type: ignore[index]
    assert not served.ctx.branches


async def test_a_strict_server_refuses_what_changes_no_answer(serve: Serve) -> None:
    async with serve(strict=True) as served:
        for wrong, param in [*REFUSED, *REFUSED_STRICTLY]:
            response = await served.http.post("/v1/responses", json={"model": "nano", "input": "hi"} | wrong)
            assert response.json()["error"]["param"] == param


async def test_a_schema_that_no_grammar_holds_is_refused_before_a_stream_begins(served: Served) -> None:
    form: Any = {"type": "json_schema", "name": "x", "schema": {"type": "array", "uniqueItems": True}}
    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        await served.openai.responses.create(model="nano", input="hi", stream=True, text={"format": form})
    assert not served.ctx.branches


async def test_a_stream_that_is_left_frees_its_branch(served: Served) -> None:
    stream = await served.openai.responses.create(model="nano", input="Who are you?", temperature=2, stream=True)
    async for _ in stream:
        break
    await stream.close()
    await served.until(lambda: not served.server.admission.running)
    stored = len(served.server.cache)
    assert len(served.ctx.branches) == stored
