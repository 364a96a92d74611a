"""Answers of agents that are values: with and without tools, refused and asked for again."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, field_validator

import agentkv as kv
from examples.nano.tools import SYSTEM

from .conftest import NO_CALL, TWO_CALLS, OpenDesk, as_tool

pytestmark = pytest.mark.anyio


class Weather(BaseModel):
    city: Literal["Tolvik", "Brasno"]
    temp: int = Field(ge=-40, le=50)


class Deep(BaseModel):
    n: int
    x: Deep | None


async def test_an_answer_is_a_value(open_desk: OpenDesk) -> None:
    agent = kv.Agent(SYSTEM, output=Weather)
    async with open_desk() as ctx:
        run = await agent.run(await agent.trunk(ctx), NO_CALL)
        assert isinstance(run.output, Weather)
        assert Weather.model_validate_json(run.text) == run.output


@pytest.mark.parametrize("output", [Weather, Literal["warm", "cold"]])
async def test_beside_tools_a_message_is_calls_or_the_value(open_desk: OpenDesk, output: Any) -> None:
    agent = kv.Agent(SYSTEM, tools=[as_tool("weather", repeatable=True)], output=output, max_rounds=3)
    values = 0
    async with open_desk() as ctx:
        trunk = await agent.trunk(ctx)
        for question in (TWO_CALLS, NO_CALL, "Thank you!", "How are you?"):
            try:
                run = await agent.run(await trunk.fork(), question)
            except kv.LimitReached as error:  # nano was not trained to write values, and may go on calling
                calls = error.run.calls if error.run else ()
            else:
                values += isinstance(run.output, Weather) or run.output in ("warm", "cold")
                calls = run.calls
            assert all(call.status == "done" for call in calls)
    assert values


async def test_a_grammar_is_an_answer_without_tools(open_desk: OpenDesk) -> None:
    agent = kv.Agent(SYSTEM, output=kv.Regex("[0-9]{4}"))
    async with open_desk() as ctx:
        run = await agent.run(await agent.trunk(ctx), NO_CALL)
        assert len(run.output) == 4
        assert run.output.isdigit()


async def test_an_answer_that_its_type_refuses_is_asked_for_again(open_desk: OpenDesk) -> None:
    seen: list[str] = []

    class Picky(BaseModel):
        city: Literal["Tolvik", "Brasno"]

        @field_validator("city")
        @classmethod
        def not_the_first(cls, city: str) -> str:
            seen.append(city)
            if len(seen) <= refusals:
                raise ValueError("another one, please")
            return city

    agent = kv.Agent(SYSTEM, output=Picky, output_retries=2)
    async with open_desk() as ctx:
        trunk = await agent.trunk(ctx)
        refusals = 2
        branch = await trunk.fork()
        async with agent.stream(branch, NO_CALL) as events:
            told = [type(event).__name__ async for event in events]
        assert (told.count("Retried"), told.count("RolledBack")) == (2, 2)
        assert len(seen) == 3  # each answer is validated once
        assert [message.role for message in branch.messages[1:]] == ["user", "assistant"]
        refusals, before = 99, trunk.tokens
        with pytest.raises(kv.OutputInvalid, match="another one, please") as caught:
            await agent.run(trunk, NO_CALL)
        assert trunk.tokens == before
        assert caught.value.run is not None
        assert caught.value.run.usage.completion_tokens > 0


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("choice", ['"yes"', '"', "no"])
async def test_words_may_begin_with_a_quotation_mark(choice: str, thinking: bool) -> None:
    tools = [as_tool("weather")] if thinking else []
    agent = kv.Agent(SYSTEM, tools=tools, output=Literal['"yes"', '"', "no"])
    said = json.dumps(choice) if thinking else choice  # beside calls, words are JSON
    async with kv.testing.replies([said], capacity=512) as ctx:
        assert (await agent.run(await agent.trunk(ctx), NO_CALL)).output == choice


@pytest.mark.parametrize("kind", [Deep, list[object]])
async def test_an_answer_that_is_nested_too_deeply_is_refused(kind: Any) -> None:
    levels = range(250)  # counted: a message that repeats itself is cut before
    deep = "".join(f'{{"n": {n}, "x": ' for n in levels) + "null" + "}" * 250
    said = deep if kind is Deep else "".join(f"[{n}, " for n in levels) + "0" + "]" * 250
    agent = kv.Agent(SYSTEM, output=kind, output_retries=0, max_message_tokens=4096)
    async with kv.testing.replies([said], capacity=8192) as ctx:
        branch = await agent.trunk(ctx)
        with pytest.raises(kv.OutputInvalid, match="refused"):
            await agent.run(branch, NO_CALL)


def test_a_json_that_is_nested_too_deeply_for_python_is_refused() -> None:
    with pytest.raises(kv.OutputInvalid, match="nested too deeply"):
        kv.JsonSchema({}).read("[" * 100_000 + "]" * 100_000)
