"""The OpenAI Agents SDK's own features, on nano in this process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from agents import Agent, ModelSettings, ReasoningItem, RunConfig, Runner, ToolCallOutputItem, function_tool
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel

import agentkv as kv
from agentkv.adapters.openai_agents import Model
from tests.agentkv.conftest import WithTemplate, event_loop_goes_first
from tests.runtime.chat_styles import THINKING

from .conftest import INSTRUCTIONS, NO_CALL, TWO_CALLS, TWO_RESULTS, Meeting, freed, generating

pytestmark = pytest.mark.anyio

HERE = RunConfig(tracing_disabled=True)  # the SDK would send traces to OpenAI
GREEDY = ModelSettings(temperature=0.0)


def agent_of(model: kv.Context | Path, **options: Any) -> Agent[None]:
    return Agent(name="Nano", instructions=INSTRUCTIONS, model=Model(model), model_settings=GREEDY, **options)


async def run(agent: Agent[None], said: Any) -> Any:
    return await Runner.run(agent, said, run_config=HERE)


async def test_tools_run_side_by_side(ctx: kv.Context, meeting: Meeting) -> None:
    @function_tool
    async def weather(city: str) -> str:
        """The weather in a city."""
        return json.dumps(await meeting.weather(city))

    result = await run(agent_of(ctx, tools=[weather]), TWO_CALLS)
    assert meeting.begun == ["Tolvik", "Brasno"]
    assert [json.loads(i.output) for i in result.new_items if isinstance(i, ToolCallOutputItem)] == TWO_RESULTS
    assert all(str(told["sky"]) in result.final_output for told in TWO_RESULTS)
    usage = result.context_wrapper.usage
    assert usage.requests == 2
    assert usage.input_tokens_details.cached_tokens > usage.input_tokens / 3  # the second request brings the first


async def test_text_is_streamed_as_it_is_said(ctx: kv.Context) -> None:
    agent = agent_of(ctx)
    async with event_loop_goes_first():  # what is said while the reader is busy comes together
        stream = Runner.run_streamed(agent, NO_CALL, run_config=HERE)
        pieces = [
            event.data.delta
            async for event in stream.stream_events()
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
        ]
    assert len(pieces) > 1
    assert "".join(pieces) == stream.final_output == (await run(agent, NO_CALL)).final_output


class Weather(BaseModel):
    city: Literal["Tolvik", "Brasno"]
    sky: Literal["sunny", "rainy"]


async def test_output_is_held_to_its_schema_by_a_grammar(ctx: kv.Context) -> None:
    agent = Agent(name="Nano", model=Model(ctx), output_type=Weather, model_settings=ModelSettings(temperature=2.0))
    outputs = [(await run(agent, "Which?")).final_output for _ in range(8)]
    assert all(isinstance(output, Weather) for output in outputs)
    assert len({output.model_dump_json() for output in outputs}) > 1


async def test_a_history_is_gone_on_with_and_forked(ctx: kv.Context) -> None:
    """Each token is computed once, but for a reply's last one, which is fed with what follows it."""
    agent = agent_of(ctx)
    first = await run(agent, NO_CALL)
    held = first.context_wrapper.usage.total_tokens
    for question in ("What is 7 * 8?", "And you?", "What is 7 * 9?"):
        before = ctx.stats.prefilled
        then = await run(agent, [*first.to_input_list(), {"role": "user", "content": question}])
        usage = then.context_wrapper.usage
        cached = usage.input_tokens_details.cached_tokens
        assert cached >= held  # an earlier question may begin alike
        assert ctx.stats.prefilled - before <= usage.input_tokens - cached + 1
    again = await run(agent, [*then.to_input_list(), {"role": "user", "content": "Thanks."}])
    assert again.context_wrapper.usage.input_tokens_details.cached_tokens >= usage.total_tokens


async def test_what_the_model_thinks_is_an_item_of_its_own(with_template: WithTemplate) -> None:
    said = ["<think>\nhm, 4\n</think>\n\nIt is 4.", "It is 5."]
    async with kv.testing.replies(said, with_template(THINKING), capacity=512) as ctx:
        agent = Agent(name="Nano", model=Model(ctx), model_settings=ModelSettings(temperature=0.0, max_tokens=100))
        result = await run(agent, "What is 2 + 2?")
        (thought,) = [item.raw_item for item in result.new_items if isinstance(item, ReasoningItem)]
        assert [part.text for part in thought.content or thought.summary] == ["hm, 4"]
        assert result.final_output == "It is 4."
        then = await run(agent, [*result.to_input_list(), {"role": "user", "content": "And 5?"}])
        assert then.final_output == "It is 5."


async def test_a_cancelled_run_frees_its_branch(ctx: kv.Context) -> None:
    agent = agent_of(ctx)
    agent.model_settings = ModelSettings(
        temperature=0.0, extra_body={"logit_bias": {str(i): -100 for i in ctx.tokenizer.eos_ids}}
    )
    async with freed(ctx), anyio.create_task_group() as group:
        group.start_soon(run, agent, NO_CALL)
        await generating(ctx)
        group.cancel_scope.cancel()
    async with freed(ctx):
        stream = Runner.run_streamed(agent, NO_CALL, run_config=HERE)
        async for event in stream.stream_events():
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                stream.cancel()


def test_without_a_context_every_event_loop_may_ask() -> None:
    agent = agent_of(kv.models.nano())
    said = [Runner.run_sync(agent, NO_CALL, run_config=HERE).final_output]
    said += [asyncio.run(run(agent, NO_CALL)).final_output for _ in range(2)]
    assert len(set(said)) == 1
    asyncio.run(agent.model.close())  # type: ignore[union-attr]


async def test_what_cannot_be_opened_says_so(tmp_path: Path) -> None:
    with pytest.raises(kv.ModelError, match="no such folder"):
        await run(agent_of(tmp_path / "none"), NO_CALL)
