"""Agents on nano: turns, rounds, calls, limits, hooks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest

import agentkv as kv
from examples.nano.tools import TOOLS
from tests.agentkv.conftest import event_loop_goes_first
from tests.waiting import NEVER, PATIENCE, SOON

from .conftest import NO_CALL, ONE_CALL, TWO_CALLS, OpenDesk, as_tool, desk_agent

pytestmark = pytest.mark.anyio


async def test_a_turn_calls_tools_and_answers(open_desk: OpenDesk) -> None:
    agent = desk_agent("weather", "stock")
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        before = len(branch)
        run = await agent.run(branch, TWO_CALLS)
        assert [(call.name, dict(call.arguments)) for call in run.calls] == [
            ("weather", {"city": "Tolvik"}),
            ("weather", {"city": "Brasno"}),
        ]
        assert [call.result for call in run.calls] == [TOOLS["weather"].run(city=c) for c in ("Tolvik", "Brasno")]
        assert all(call.error is None and call.status == "done" and call.seconds >= 0 for call in run.calls)
        assert (run.output, run.rounds) == (run.text, 2)
        assert str(run.calls[0].result["temp"]) in run.text
        assert [message.role for message in run.messages] == ["user", "assistant", "tool", "tool", "assistant"]
        assert [m.content for m in run.messages if m.role == "tool"] == [call.content for call in run.calls]
        assert [m.call_id for m in run.messages if m.role == "tool"] == [call.id for call in run.calls]
        assert run.messages == tuple(branch.messages[1:])
        assert run.usage.total_tokens == len(branch)
        assert 0 < run.usage.completion_tokens < len(branch) - before
        again = await agent.run(branch, ONE_CALL)  # the conversation goes on
        assert [call.name for call in again.calls] == ["stock"]
        assert len({call.id for call in (*run.calls, *again.calls)}) == 3
        assert [message.role for message in again.messages] == ["user", "assistant", "tool", "assistant"]


async def test_a_turn_says_what_the_bare_verbs_say(open_desk: OpenDesk) -> None:
    agent = desk_agent("stock")
    async with open_desk() as ctx:
        trunk = await agent.trunk(ctx)
        bare = await trunk.fork()
        await bare.extend([{"role": "user", "content": ONE_CALL}])
        first = await bare.generate(max_tokens=100)
        await bare.extend([{"role": "tool", "content": '{"count": 152, "price": 57}'}])
        last = await bare.generate(max_tokens=100)
        branch = await trunk.fork()
        run = await agent.run(branch, ONE_CALL)
        assert "Lumora" in first.text
        assert run.text == last.text
        assert branch.tokens == bare.tokens
        assert run.usage.completion_tokens == len(first.tokens) + len(last.tokens)


async def test_no_call_is_one_round(open_desk: OpenDesk) -> None:
    agent: kv.Agent[None, str] = kv.Agent("You are Nano, a desk agent.")
    async with open_desk() as ctx:
        run = await agent.run(await agent.trunk(ctx), NO_CALL)
        assert (run.calls, run.rounds) == ((), 1)
        assert "Nano" in run.text


async def test_the_prompt_is_prefilled_once(open_desk: OpenDesk) -> None:
    agent = desk_agent("weather", "stock", "train")
    async with open_desk() as ctx:
        trunks: list[kv.Branch] = []

        async def open_one() -> None:
            trunks.append(await agent.trunk(ctx))

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(open_one)
        length, prefilled = len(trunks[0]), ctx.stats.prefilled
        assert prefilled == length
        assert ctx.branches == sorted(trunks, key=lambda trunk: trunk.id)
        assert {trunk.parent for trunk in trunks} == {None}
        assert ctx.stats.cells_used == length
        for trunk in trunks:
            await trunk.close()
        assert len(await agent.trunk(ctx)) == length
        assert ctx.stats.prefilled == length
        await ctx.keep()
        assert (ctx.stats.branches, ctx.stats.cells_used) == (0, 0)
        assert len(await agent.trunk(ctx)) == length
        assert ctx.stats.prefilled == length + 1  # the first one had left its cells


async def test_an_agents_prompt_goes_with_the_agent(open_desk: OpenDesk) -> None:
    async with open_desk() as ctx:
        await (await desk_agent("weather").trunk(ctx)).close()
        with anyio.fail_after(PATIENCE):
            while ctx.stats.branches:
                await ctx._core.loop.call(lambda _: None)


async def test_a_person_decides(open_desk: OpenDesk) -> None:
    tool = as_tool("stock", approve=True)
    agent = desk_agent(tools=[tool])
    async with open_desk() as ctx:
        trunk = await agent.trunk(ctx)
        asked: list[kv.events.ApprovalAsked] = []

        async def yes(event: kv.events.ApprovalAsked) -> bool:
            asked.append(event)
            return True

        def answers(event: kv.events.ApprovalAsked) -> None:
            event.deny("too expensive")

        run = await agent.run(await trunk.fork(), ONE_CALL, approve=yes)
        assert (run.calls[0].status, asked[0].call.arguments) == ("done", {"product": "Lumora"})
        run = await agent.run(await trunk.fork(), ONE_CALL, approve=answers)
        assert (run.calls[0].status, run.calls[0].error) == ("denied", "denied: too expensive")
        for nobody in (None, lambda event: False, lambda event: None):
            run = await agent.run(await trunk.fork(), ONE_CALL, approve=nobody)
            assert (run.calls[0].status, run.calls[0].ran) == ("denied", False)


async def test_the_model_reads_what_a_tool_says(open_desk: OpenDesk) -> None:
    """Errors and retries enter as the tool's message, and the turn goes on."""

    def stock(product: str) -> Any:
        raise kv.Retry("unknown product")

    agent = desk_agent(tools=[as_tool("stock", stock)], max_rounds=3)
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        await branch.extend([{"role": "user", "content": ONE_CALL}])
        step = await agent.step(branch)
        assert (step.calls[0].status, step.done) == ("retry", False)
        assert branch.messages[-1].content == '{"error": "unknown product"}'


async def test_rounds_are_steps(open_desk: OpenDesk) -> None:
    agent = desk_agent("weather")
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        whole = await agent.run(await branch.fork(), TWO_CALLS)
        await branch.extend([{"role": "user", "content": TWO_CALLS}])
        steps = [await agent.step(branch)]
        while not steps[-1].done:
            steps.append(await agent.step(branch))
        assert [len(step.calls) for step in steps] == [2, 0]
        assert steps[-1].output == steps[-1].text == whole.output
        assert steps[0].generation.finish_reason in ("eos", "stop")
        with pytest.raises(kv.OutputIncomplete, match="another step"):
            _ = steps[0].output
        run = await agent.run(await agent.trunk(ctx), TWO_CALLS)
        assert [m.content for m in branch.messages] == [m.content for m in branch.messages[:1]] + [
            m.content for m in run.messages
        ]


async def test_hooks_hear_of_rounds_and_calls(open_desk: OpenDesk) -> None:
    heard: list[Any] = []

    async def before(ctx: kv.RunContext[Any]) -> None:
        heard.append((ctx.deps, ctx.call, len(ctx.branch)))

    def after(ctx: kv.RunContext[Any], call: kv.CallRecord) -> None:
        heard.append((ctx.deps, call.name, call.status))

    agent: kv.Agent[int, str] = desk_agent("stock", before_round=before, after_call=after)
    async with open_desk() as ctx:
        await agent.run(await agent.trunk(ctx), ONE_CALL, deps=7)
        assert [item[:2] for item in heard] == [(7, None), (7, "stock"), (7, None)]
        assert heard[1][2] == "done"

        def refuse(*_: Any) -> None:
            raise KeyError("enough")

        for name in ("before_round", "after_call"):
            strict = desk_agent("stock", **{name: refuse})
            branch = await strict.trunk(ctx)
            length = len(branch)
            with pytest.raises(KeyError, match="enough") as caught:
                await strict.run(branch, ONE_CALL)
            assert len(branch) == length
            assert len(caught.value.run.calls) == (name == "after_call")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("limits", "said", "calls"),
    [
        ({"max_rounds": 1}, "all of its 1 rounds", 2),
        ({"max_tokens": 5}, "cut after 5 tokens", 0),
        ({"max_calls": 1}, "more than 1 calls", 1),
        ({"max_seconds": SOON}, f"longer than {SOON} s", 2),
    ],
)
async def test_limits_end_a_turn(open_desk: OpenDesk, limits: dict[str, Any], said: str, calls: int) -> None:
    async def slow(city: str) -> dict[str, int]:
        if "max_seconds" in limits:
            await anyio.sleep(NEVER)
        return {"temp": 1}

    agent = desk_agent(tools=[as_tool("weather", slow)], **limits)
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        before = branch.tokens
        with pytest.raises(kv.LimitReached, match=said) as caught:
            await agent.run(branch, TWO_CALLS)
        assert branch.tokens == before
        run = caught.value.run
        assert run is not None
        assert len(run.calls) <= calls
        with pytest.raises(kv.OutputIncomplete):
            _ = run.output


async def test_keep_partial_keeps_what_was_done(open_desk: OpenDesk) -> None:
    agent = desk_agent("weather", max_rounds=1)
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        with pytest.raises(kv.LimitReached) as caught:
            await agent.run(branch, TWO_CALLS, keep_partial=True)
        assert [m.role for m in branch.messages[1:]] == ["user", "assistant", "tool", "tool"]
        assert caught.value.run is not None
        assert caught.value.run.messages == tuple(branch.messages[1:])
        run = await desk_agent("weather").run(branch)  # and goes on from there
        assert run.calls == ()
        assert "Tolvik" in run.text


NUMBERS = " ".join(map(str, range(1000)))  # many tokens, and none of them again and again


async def test_what_was_kept_of_a_message_that_nobody_listened_to_is_the_text(open_desk: OpenDesk) -> None:
    agent = desk_agent(output=kv.Regex(NUMBERS), max_seconds=SOON)
    async with open_desk() as ctx, event_loop_goes_first():  # which finds that the time is up before the message ends
        run = None
        while run is None or not run.usage.completion_tokens:  # a slow machine needs more time for the first of them
            branch = await agent.trunk(ctx)
            with pytest.raises(kv.LimitReached, match="longer than") as caught:
                await agent.run(branch, NO_CALL, keep_partial=True)
            run = caught.value.run
            assert run is not None
            agent = replace(agent, max_seconds=2 * agent.max_seconds)
        assert run.text == branch.messages[-1].content
        assert run.usage.total_tokens - len(branch) in (0, 1)  # a space behind the last number is in no text yet


async def test_tools_of_a_toolset_are_asked_for_anew(open_desk: OpenDesk) -> None:
    class Shelf:
        def __init__(self) -> None:
            self.names = ["stock"]

        async def tools(self) -> list[kv.Tool[Any, ..., Any]]:
            return [as_tool(name) for name in self.names]

    shelf = Shelf()
    agent = desk_agent("weather", toolsets=[shelf])
    async with open_desk() as ctx:
        trunk = await agent.trunk(ctx)
        run = await agent.run(await trunk.fork(), ONE_CALL)
        assert [call.status for call in run.calls] == ["done"]
        shelf.names = ["stock", "train"]
        assert len(await agent.trunk(ctx)) > len(trunk)
        shelf.names = ["weather"]
        with pytest.raises(kv.InvalidInput, match="two tools are called weather"):
            await agent.trunk(ctx)


@pytest.mark.parametrize(
    "options",
    [
        {"instructions": 3},
        {"instructions": "\ud800"},
        {"tools": [len]},
        {"tools": as_tool("stock"), "max_rounds": 0},
        {"tools": [as_tool("stock"), as_tool("stock")]},
        {"output": "a str"},
        {"output": kv.Regex("a"), "tools": [as_tool("stock")]},
        {"max_rounds": 0},
        {"max_tokens": 0},
        {"max_calls": -1},
        {"max_seconds": 0},
        {"max_seconds": "1"},
        {"sampling": 3},
        {"output_retries": -1},
    ],
    ids=lambda options: " ".join(options),
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(kv.InvalidInput):
        kv.Agent(**options)


def test_an_agent_is_frozen() -> None:
    agent = desk_agent("stock")
    with pytest.raises(AttributeError):
        agent.max_rounds = 3  # type: ignore[misc]
    assert isinstance(agent.tools, tuple)
    assert kv.Agent("x", tools=as_tool("stock")).tools[0].name == "stock"  # type: ignore[arg-type]
