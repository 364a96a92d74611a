"""Pydantic AI's own features, on nano in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import anyio
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ThinkingPart
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ToolReturnPart

import agentkv as kv
from agentkv.adapters.pydantic_ai import Model
from tests.agentkv.conftest import WithTemplate, event_loop_goes_first
from tests.runtime.chat_styles import THINKING

from .conftest import INSTRUCTIONS, NO_CALL, TWO_CALLS, TWO_RESULTS, Meeting, freed, generating

pytestmark = pytest.mark.anyio

GREEDY = {"temperature": 0.0}


def agent_of(ctx: kv.Context, **options: object) -> Agent[None, str]:
    return Agent(Model(ctx), instructions=INSTRUCTIONS, model_settings=GREEDY, **options)


async def test_tools_run_side_by_side(ctx: kv.Context, meeting: Meeting) -> None:
    run = await agent_of(ctx, tools=[meeting.weather]).run(TWO_CALLS)
    assert meeting.begun == ["Tolvik", "Brasno"]
    returned = [p for m in run.all_messages() for p in m.parts if isinstance(p, ToolReturnPart)]
    assert [part.content for part in returned] == TWO_RESULTS
    assert all(str(result["sky"]) in run.output for result in TWO_RESULTS)
    assert run.usage.requests == 2
    assert run.usage.cache_read_tokens > run.usage.input_tokens / 3  # the second request brings the first


async def test_text_is_streamed_as_it_is_said(ctx: kv.Context) -> None:
    agent = agent_of(ctx)
    whole = (await agent.run(NO_CALL)).output
    async with event_loop_goes_first(), agent.run_stream(NO_CALL) as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 1  # what is said while the reader is busy comes together
    assert "".join(pieces) == whole
    assert stream.usage.output_tokens > 0


async def test_instructions_alone_are_answered_and_not_repeated() -> None:
    prompts: list[str] = []

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        return "So it is."

    async with kv.testing.replies(reply, capacity=512, threads=1) as ctx:
        agent: Agent[None, str] = Agent(Model(ctx), instructions="The password is tulip.")
        assert (await agent.run()).output == "So it is."
        async with agent.run_stream() as stream:
            assert await stream.get_output() == "So it is."
    assert all("tulip" in prompt and prompt.endswith("<|im_start|>assistant\n") for prompt in prompts)


class Weather(BaseModel):
    city: Literal["Tolvik", "Brasno"]
    sky: Literal["sunny", "rainy"]
    degrees: Literal[1, 2, 3]


async def test_output_is_held_to_its_schema_by_a_grammar(ctx: kv.Context) -> None:
    agent = Agent(Model(ctx), output_type=Weather)
    outputs = [(await agent.run("Which?", model_settings={"temperature": 2.0, "seed": n})).output for n in range(5)]
    assert all(isinstance(output, Weather) for output in outputs)
    assert len({output.model_dump_json() for output in outputs}) > 1
    async with agent.run_stream("Which?") as stream:
        assert isinstance(await stream.get_output(), Weather)


async def test_a_history_is_gone_on_with_and_forked(ctx: kv.Context) -> None:
    """Each token is computed once, but for a reply's last one, which is fed with what follows it."""
    agent = agent_of(ctx)
    first = await agent.run(NO_CALL)
    held = first.usage.input_tokens + first.usage.output_tokens
    for question in ("What is 7 * 8?", "And you?", "What is 7 * 9?"):
        before = ctx.stats.prefilled
        then = await agent.run(question, message_history=first.all_messages())
        usage = then.usage
        assert usage.cache_read_tokens >= held  # an earlier question may begin alike
        assert ctx.stats.prefilled - before <= usage.input_tokens - usage.cache_read_tokens + 1
    again = await agent.run("Thanks.", message_history=then.all_messages())
    assert again.usage.cache_read_tokens >= usage.input_tokens + usage.output_tokens


async def test_what_the_model_thinks_is_a_part_of_its_own(with_template: WithTemplate) -> None:
    said = ["<think>\nhm, 4\n</think>\n\nIt is 4.", "It is 5."]
    async with kv.testing.replies(said, with_template(THINKING), capacity=512) as ctx:
        agent = Agent(Model(ctx), model_settings={**GREEDY, "max_tokens": 100})
        run = await agent.run("What is 2 + 2?")
        (thought,) = [part for part in run.all_messages()[-1].parts if isinstance(part, ThinkingPart)]
        assert (thought.content, run.output) == ("hm, 4", "It is 4.")
        then = await agent.run("And 5?", message_history=run.all_messages())
        assert then.output == "It is 5."


async def test_a_cancelled_run_frees_its_branch(ctx: kv.Context) -> None:
    agent = agent_of(ctx)
    settings = {"logit_bias": {str(i): -100 for i in ctx.tokenizer.eos_ids}}
    async with freed(ctx), anyio.create_task_group() as group:
        group.start_soon(lambda: agent.run(NO_CALL, model_settings=settings))
        await generating(ctx)
        group.cancel_scope.cancel()
    async with freed(ctx), agent.run_stream(NO_CALL, model_settings=settings) as stream:
        async for _ in stream.stream_text(delta=True, debounce_by=None):
            break


def test_without_a_context_every_event_loop_may_ask() -> None:
    model = Model(kv.models.nano(), capacity=1024, threads=1)
    agent = Agent(model, model_settings=GREEDY)
    try:
        said = [agent.run_sync(NO_CALL).output]
        said += [asyncio.run(agent.run(NO_CALL)).output for _ in range(2)]
        assert len(set(said)) == 1
    finally:
        model.close()
    model.close()


async def test_what_cannot_be_opened_or_asked_says_so(ctx: kv.Context, tmp_path: Path) -> None:
    with pytest.raises(kv.ModelError, match="no such folder"):
        await Agent(Model(tmp_path / "none")).run(NO_CALL)
    with pytest.raises(ModelHTTPError, match="context_length_exceeded"):
        await agent_of(ctx).run("word " * 20_000)
    with pytest.raises(kv.InvalidInput, match="path of a model folder"):
        Model(3)  # type: ignore[arg-type]


def test_a_context_is_asked_on_its_own_event_loop() -> None:
    async def opened() -> kv.Context:
        async with kv.Context.open(kv.models.nano(), capacity=64) as ctx:
            with pytest.raises(kv.WrongEventLoop):
                await asyncio.to_thread(lambda: asyncio.run(made(ctx)))
            return ctx

    async def made(ctx: kv.Context) -> Model:
        return Model(ctx)

    ctx = asyncio.run(opened())
    with pytest.raises(kv.ContextClosed):
        asyncio.run(made(ctx))
