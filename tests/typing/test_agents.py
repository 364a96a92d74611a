"""The types of tools, agents and runs, as a type checker sees them: `make lint` runs mypy over this file."""

from __future__ import annotations

from typing import assert_type

import pytest
from pydantic import BaseModel

import agentkv as kv
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


class Desk:
    """What tools are given."""


class Person(BaseModel):
    name: str


@kv.tool
def weather(city: str) -> dict[str, int]:
    """The weather in a city."""
    return {"temp": len(city)}


@kv.tool(timeout=PATIENCE)
async def stock(ctx: kv.RunContext[Desk], product: str) -> int:
    """How many there are."""
    assert_type(ctx.deps, Desk)
    return len(product)


def test_a_tool_is_called_as_its_function_is() -> None:
    assert_type(weather("Oslo"), dict[str, int])
    assert weather("Oslo") == {"temp": 4}
    assert_type(stock.name, str)


def test_agents_know_their_deps_and_their_output() -> None:
    assert_type(kv.Agent("x"), kv.Agent[None, str])
    assert_type(kv.Agent("x", tools=[weather]), kv.Agent[object, str])
    assert_type(kv.Agent("x", tools=[stock]), kv.Agent[Desk, str])
    assert_type(kv.Agent[Desk, str]("x", tools=[weather, stock]), kv.Agent[Desk, str])
    assert_type(kv.Agent("x", output=Person), kv.Agent[None, Person])
    assert_type(kv.Agent("x", output=list[int], max_rounds=3), kv.Agent[None, list[int]])
    assert_type(kv.Agent("x", tools=[stock], output=Person), kv.Agent[Desk, Person])
    assert_type(kv.Agent("x", output=kv.Regex("[0-9]+")), kv.Agent[None, str])
    assert_type(kv.Agent[Desk, Person]("x", output=Person), kv.Agent[Desk, Person])


async def _runs(branch: kv.Branch) -> None:
    """Only read by the type checker."""
    plain = kv.Agent("x")
    typed = kv.Agent("x", tools=[stock], output=Person)
    assert_type(await plain.run(branch, "?"), kv.Run[str])
    assert_type(plain.start(branch, "?"), kv.RunningTurn[str])
    assert_type(await plain.start(branch, "?"), kv.Run[str])
    assert_type(await typed.start(branch, "?", deps=Desk()), kv.Run[Person])
    run = await typed.run(branch, "?", deps=Desk())
    assert_type(run, kv.Run[Person])
    assert_type(run.output, Person)
    assert_type(run.calls, tuple[kv.CallRecord, ...])
    assert_type(run.messages, tuple[kv.Message, ...])
    assert_type((await typed.step(branch, deps=Desk())).output, Person)
    assert_type(typed.stream(branch, "?", deps=Desk()), kv.AgentStream[Person])
    async with plain.stream(branch, "?") as events:
        async for event in events:
            assert_type(event, kv.events.Event)
        assert_type(events.run, kv.Run[str])
    await typed.run(branch, "?")  # type: ignore[call-arg]  # its tools need deps
    await typed.run(branch, "?", deps=3)  # type: ignore[arg-type]
