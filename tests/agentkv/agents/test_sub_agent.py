"""Agents as tools: on forks that know what their caller knows, or on trunks of their own."""

from __future__ import annotations

from typing import Any

import pytest

import agentkv as kv

from .conftest import ONE_CALL, OpenDesk, as_tool, desk_agent

pytestmark = pytest.mark.anyio


def under_nanos_name(helper: kv.Tool[Any, ..., Any]) -> kv.Tool[Any, ..., Any]:
    """A helper behind a tool that nano calls: what is in stock is the helper's task. The result is one nano knows."""

    async def ask(ctx: kv.RunContext[Any], product: str) -> dict[str, Any]:
        answer = await helper.function(ctx, task=product)
        assert isinstance(answer, str)
        return {"count": 3, "price": 4}

    return as_tool("stock", ask, takes_context=True)


async def test_a_helper_on_a_fork_knows_what_its_caller_knows(open_desk: OpenDesk) -> None:
    seen: list[list[kv.Message]] = []

    def before(ctx: kv.RunContext[Any]) -> None:
        seen.append(ctx.branch.messages)

    helper = desk_agent(before_round=before).as_tool("ask_helper", "Asks.")
    assert helper.parameters["required"] == ["task"]
    assert helper.takes_context
    agent = desk_agent("weather", tools=[under_nanos_name(helper)])
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        await agent.run(branch, "Who are you?")
        run = await agent.run(branch, ONE_CALL)
        assert run.calls[0].status == "done", run.calls[0].error
        told = [(m.role, m.content) for m in seen[0]]  # before the helper's first message
        assert told[-2:] == [("user", ONE_CALL), ("user", "Lumora")], told  # and not the message that calls
        assert told[:-1] == [(m.role, m.content) for m in branch.messages][: len(told) - 1]
        assert ctx.branches == [branch]
        fresh = await ctx.branch(branch.tokens)
        assert (await fresh.logits() == await branch.logits()).all()


async def test_a_helper_costs_no_prefill_of_what_is_known(open_desk: OpenDesk) -> None:
    helper = desk_agent().as_tool("ask_helper", "Asks.")
    agent = desk_agent("weather", "train", "contact", tools=[under_nanos_name(helper)])
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        prefilled = ctx.stats.prefilled
        await agent.run(branch, ONE_CALL)
        assert ctx.stats.prefilled - prefilled < len(branch) - 20


async def test_a_helper_may_have_a_trunk_of_its_own(open_desk: OpenDesk) -> None:
    seen: list[list[kv.Message]] = []

    def before(ctx: kv.RunContext[Any]) -> None:
        seen.append(ctx.branch.messages)
        assert ctx.deps == "deps"

    helper = desk_agent("train", before_round=before).as_tool("ask_helper", "Asks.", fork=False)
    agent: kv.Agent[str, str] = desk_agent("weather", tools=[under_nanos_name(helper)])
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        run = await agent.run(branch, ONE_CALL, deps="deps")
        assert run.calls[0].status == "done", run.calls[0].error
        assert [(m.role, m.content) for m in seen[0]][1:] == [("user", "Lumora")]
        assert ctx.branches == [branch]


async def test_a_helper_begins_early_from_before_the_message(open_desk: OpenDesk) -> None:
    """Whatever has been generated since: the message that calls is not in the fork."""
    lengths: list[tuple[int, int]] = []

    async def weather(ctx: kv.RunContext[Any], city: str) -> dict[str, Any]:
        from agentkv.agents.sub_agent import fork_before_call

        async with await ctx.branch.fork() as now, await fork_before_call(ctx) as fork:
            assert now.tokens[: len(fork)] == fork.tokens
            lengths.append((len(fork), len(now)))
        return {"temp": 3, "sky": "rainy"}

    agent = desk_agent(tools=[as_tool("weather", weather, takes_context=True)])
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        run = await agent.run(branch, "What is the weather in Tolvik and in Brasno?")
        start = next(m.start for m in run.messages if m.calls or m.role == "assistant")
        assert [length for length, _ in lengths] == [start, start]
        assert all(now > start for _, now in lengths)


async def test_a_helper_that_fails_is_an_error_that_the_model_reads(open_desk: OpenDesk) -> None:
    helper = desk_agent(max_tokens=1).as_tool("ask_helper", "Asks.")
    agent = desk_agent(tools=[under_nanos_name(helper)])
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        run = await agent.run(branch, ONE_CALL)
        assert run.calls[0].status == "failed"
        assert "LimitReached" in (run.calls[0].error or "")
        assert ctx.branches == [branch]


async def test_the_callers_person_decides_for_its_helpers(open_desk: OpenDesk) -> None:
    asked: list[Any] = []

    def approve(event: kv.events.ApprovalAsked) -> bool:
        asked.append(event.call.arguments)
        return True

    weather = as_tool("weather", approve=True)
    helper = desk_agent(tools=[weather]).as_tool("ask_helper", "Asks.", fork=False)

    async def ask(ctx: kv.RunContext[Any], product: str) -> Any:
        await helper.function(ctx, task="What is the weather in Tolvik?")
        return {"count": 3, "price": 4}

    agent = desk_agent(tools=[as_tool("stock", ask, takes_context=True)])
    async with open_desk() as ctx:
        run = await agent.run(await agent.trunk(ctx), ONE_CALL, approve=approve)
        assert run.calls[0].status == "done"
        assert asked == [{"city": "Tolvik"}]
