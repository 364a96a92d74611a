"""Calls that begin while the turn goes on: before the message is whole, at once, beside other branches."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import agentkv as kv
from tests.agentkv.conftest import event_loop_goes_first
from tests.waiting import PATIENCE

from .conftest import TWO_CALLS, OpenDesk, as_tool, desk_agent
from .test_agent_stream import events_of, kinds

pytestmark = pytest.mark.anyio


async def test_a_call_begins_while_the_next_one_is_written(open_desk: OpenDesk) -> None:
    """The first tool is asked at a length of the branch at which the second call is not there yet."""
    begun: dict[str, str] = {}
    second = anyio.Event()

    async def weather(ctx: kv.RunContext[Any], city: str) -> dict[str, Any]:
        async with await ctx.branch.fork() as now:  # what is written so far
            begun[city] = now.text
        if city == "Brasno":
            second.set()
        else:
            with anyio.fail_after(PATIENCE):
                await second.wait()  # it still runs when the second call begins
        return {"temp": 3, "sky": "sunny"}

    tool = as_tool("weather", weather, takes_context=True)
    async with open_desk() as ctx:
        agent = desk_agent(tools=[tool])
        trunk = await agent.trunk(ctx)
        async with event_loop_goes_first():
            events = await events_of(agent.stream(trunk, TWO_CALLS))
        assert "Brasno" not in begun["Tolvik"].split("<|im_start|>")[-1]
        assert begun["Brasno"].count("</tool_call>") == 2
        assert kinds(events)[:2] == ["CallStarted", "CallFinished"]
        names = [e.call.arguments["city"] for e in events if isinstance(e, kv.events.CallStarted)]
        assert names == ["Tolvik", "Brasno"]


@pytest.mark.parametrize("options", [{"early": False}, {"approve": True}])
async def test_other_calls_wait_for_the_whole_message(open_desk: OpenDesk, options: dict[str, bool]) -> None:
    begun: list[str] = []

    async def weather(ctx: kv.RunContext[Any], city: str) -> dict[str, Any]:
        async with await ctx.branch.fork() as now:
            begun.append(now.text.split("<|im_start|>")[-1])
        return {"temp": 3, "sky": "sunny"}

    agent = desk_agent(tools=[as_tool("weather", weather, takes_context=True, **options)])
    async with open_desk() as ctx:
        await agent.run(await agent.trunk(ctx), TWO_CALLS, approve=lambda event: True)
        assert [text.count("</tool_call>") for text in begun] == [2, 2]


async def test_results_enter_in_call_order(open_desk: OpenDesk) -> None:
    first = anyio.Event()

    async def weather(city: str) -> dict[str, Any]:
        if city == "Tolvik":
            await first.wait()
        else:
            first.set()
        return {"temp": len(city), "sky": "sunny"}

    agent = desk_agent(tools=[as_tool("weather", weather)])
    async with open_desk() as ctx:
        stream = agent.stream(await agent.trunk(ctx), TWO_CALLS)
        events = await events_of(stream)
        ended = [e.call.arguments["city"] for e in events if isinstance(e, kv.events.CallFinished)]
        assert ended == ["Brasno", "Tolvik"]
        assert [call.arguments["city"] for call in stream.run.calls] == ["Tolvik", "Brasno"]
        results = [message for message in stream.run.messages if message.role == "tool"]
        assert [message.call_id for message in results] == [call.id for call in stream.run.calls]


async def test_sixteen_tools_run_at_once_while_others_decode(open_desk: OpenDesk) -> None:
    """All sixteen are under way at one time, threads and tasks alike, and two other branches go on meanwhile."""
    import threading

    from agentkv._aio.threads import ToolThreads
    from agentkv.agents.tool_runner import ToolCallRunner, ToolEnvironment

    barrier = threading.Barrier(9, timeout=PATIENCE)
    arrived, everybody = [], anyio.Event()

    @kv.tool
    def thread() -> str:
        barrier.wait()
        return "t"

    @kv.tool
    async def task() -> str:
        arrived.append(1)
        if len(arrived) == 8:
            everybody.set()
        await everybody.wait()
        return "a"

    async with open_desk() as ctx:
        trunk = await desk_agent().trunk(ctx)
        kids = await trunk.fork(2)

        async def nobody(event: Any) -> None: ...

        async def decode(kid: kv.Branch) -> None:
            while True:
                mark = kid.mark()
                await kid.generate(max_tokens=50, sampling=kv.Sampling(temperature=1))
                await kid.rollback(mark)

        desk = ToolEnvironment(
            {"thread": thread, "task": task},
            kv.RunContext(None, trunk, desk_agent()),
            ToolThreads(),
            ctx.tokenizer,
            nobody,
            nobody,
        )
        calls = [
            ToolCallRunner(desk, kv.CallRequest(str(i), name, {})) for i in range(8) for name in ("thread", "task")
        ]
        before = ctx.stats.generated
        async with anyio.create_task_group() as decoding:
            for kid in kids:
                decoding.start_soon(decode, kid)
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as group:
                    for call in calls:
                        group.start_soon(call.run)
                    while len(arrived) < 8 or barrier.n_waiting < 8 or ctx.stats.generated < before + 8:
                        await ctx._core.loop.call(lambda _: None)
                    barrier.wait()
            decoding.cancel_scope.cancel()
        assert {call.finished.status for call in calls} == {"done"}


async def test_a_turn_that_nobody_listens_to_is_woken_where_a_call_may_end(open_desk: OpenDesk) -> None:
    """The first call begins before the second one is written, and few of the tokens wake the turn."""
    begun: list[str] = []

    async def weather(ctx: kv.RunContext[Any], city: str) -> dict[str, Any]:
        async with await ctx.branch.fork() as now:
            begun.append(now.text.split("<|im_start|>")[-1])
        return {"temp": 3, "sky": "sunny"}

    wakes = 0
    batch = kv.TokenStream.batch

    async def counted(stream: kv.TokenStream[Any], most: int | None = None) -> list[kv.Token]:
        nonlocal wakes
        wakes += 1
        return await batch(stream, most)

    agent = desk_agent(tools=[as_tool("weather", weather, takes_context=True)])
    async with open_desk() as ctx:
        trunk = await agent.trunk(ctx)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kv.TokenStream, "batch", counted)
            async with event_loop_goes_first():
                run = await agent.run(trunk, TWO_CALLS)
        assert [text.count("</tool_call>") for text in begun] == [1, 2]
        assert "Brasno" not in begun[0]
        assert wakes < run.usage.completion_tokens // 4
