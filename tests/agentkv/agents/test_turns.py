"""Turns are transactions: whatever ends one, its branch is as if it had never begun, and nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import agentkv as kv
from tests.agentkv.conftest import after_forwards
from tests.faults import fail_at
from tests.waiting import NEVER, PATIENCE

from .before import Before, live_tasks
from .conftest import NO_CALL, ONE_CALL, TWO_CALLS, OpenDesk, as_tool, desk_agent

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("failing_caches")]


async def fails(turn: Callable[[], Awaitable[Any]], error: type[Exception], said: str = "") -> Exception:
    with pytest.raises(error, match=said) as caught:
        await turn()
    return caught.value


async def stuck(**_: Any) -> None:
    await anyio.sleep(NEVER)


def broken(**_: Any) -> None:
    raise OSError("the disk is gone")


async def test_a_tool_that_raises_ends_the_turn_where_it_says_so(open_desk: OpenDesk) -> None:
    agent = desk_agent(tools=[as_tool("weather", broken, on_error="raise")])
    async with open_desk() as ctx:
        before = await Before.of(ctx, await agent.trunk(ctx))
        error = await fails(lambda: agent.run(before.branch, TWO_CALLS), kv.ToolFailed, "the disk is gone")
        assert isinstance(error.__cause__, OSError)
        assert "failed" in [call.status for call in error.run.calls]  # type: ignore[attr-defined]
        await before.check()


async def test_effects_survive_and_are_told(open_desk: OpenDesk) -> None:
    done: list[str] = []

    async def weather(city: str) -> dict[str, int]:
        if city == "Brasno":
            raise OSError("no answer")
        done.append(city)
        return {"temp": 3}

    agent = desk_agent(tools=[as_tool("weather", weather, on_error="raise")])
    async with open_desk() as ctx:
        before = await Before.of(ctx, await agent.trunk(ctx))
        error = await fails(lambda: agent.run(before.branch, TWO_CALLS), kv.ToolFailed)
        run = error.run  # type: ignore[attr-defined]
        assert [(call.name, call.arguments["city"], call.status) for call in run.calls] == [
            ("weather", "Tolvik", "done"),
            ("weather", "Brasno", "failed"),
        ]
        assert (run.calls[0].result, done) == ({"temp": 3}, ["Tolvik"])
        assert run.messages[0].content == TWO_CALLS
        await before.check()


@pytest.mark.parametrize("after", [0, 1, 3, 8, 14])
async def test_a_forward_that_fails_ends_the_turn(open_desk: OpenDesk, after: int) -> None:
    agent = desk_agent("weather")
    async with open_desk() as ctx:
        before = await Before.of(ctx, await agent.trunk(ctx))
        await fail_at(ctx, 1, after=after)
        error = await fails(lambda: agent.run(before.branch, TWO_CALLS), kv.StepFailed)
        assert isinstance(error.run, kv.Run)  # type: ignore[attr-defined]
        await before.check()
        run = await agent.run(before.branch, TWO_CALLS)
        assert len(run.calls) == 2


async def test_a_turn_may_be_cancelled_at_every_forward(open_desk: OpenDesk) -> None:
    agent = desk_agent("weather")
    async with open_desk() as ctx:
        before = await Before.of(ctx, await agent.trunk(ctx))
        first = ctx.stats.forwards
        whole = await (await before.branch.fork()).logits()
        fork = await before.branch.fork()
        run = await agent.run(fork, TWO_CALLS)
        forwards = ctx.stats.forwards - first
        await ctx.keep(before.branch)
        assert len(run.calls) == 2
        assert whole is not None
        before = await Before.of(ctx, before.branch)
        for count in range(0, forwards, 5):
            async with anyio.create_task_group() as group:
                group.start_soon(agent.run, before.branch, TWO_CALLS)
                await after_forwards(ctx, count)
                group.cancel_scope.cancel()
            if len(before.branch) != len(before.tokens):  # it had ended already
                await before.branch.rollback(before.mark)
            await before.check()


@pytest.mark.parametrize("runs_in", ["task", "thread"])
async def test_a_turn_may_be_cancelled_while_its_tools_run(open_desk: OpenDesk, runs_in: str) -> None:
    began, release = anyio.Event(), threading.Event()

    def waits(**_: Any) -> None:
        release.wait(PATIENCE)

    async def begun(ctx: kv.RunContext[Any], call: kv.CallRecord) -> None:
        pass

    agent = desk_agent(tools=[as_tool("weather", stuck if runs_in == "task" else waits)], after_call=begun)
    async with open_desk() as ctx:
        before = await Before.of(ctx, await agent.trunk(ctx))

        async def watch() -> None:
            async with agent.stream(before.branch, TWO_CALLS) as events:
                async for event in events:
                    if isinstance(event, kv.events.CallStarted):
                        began.set()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await began.wait()
            group.cancel_scope.cancel()
        release.set()
        await before.check()


async def test_the_time_of_a_turn_may_end_at_any_moment(open_desk: OpenDesk) -> None:
    async with open_desk() as ctx:
        trunk = await desk_agent("weather").trunk(ctx)
        before = await Before.of(ctx, trunk)
        for seconds in (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032):
            agent = desk_agent(tools=[as_tool("weather", stuck)], max_seconds=seconds)
            error = await fails(lambda agent=agent: agent.run(trunk, TWO_CALLS), kv.LimitReached)  # type: ignore[misc]
            assert error.run.seconds >= seconds  # type: ignore[attr-defined]
            await before.check()


async def test_a_full_cache_ends_the_turn(open_desk: OpenDesk) -> None:
    agent = desk_agent("weather")
    async with open_desk(capacity=256) as ctx:
        before = await Before.of(ctx, await agent.trunk(ctx))
        free = 256 - ctx.stats.cells_used
        kinds = set()
        for left in range(2, free, 31):
            filler = await ctx.branch([5] * (free - left))
            try:
                await agent.run(before.branch, TWO_CALLS)
                await before.branch.rollback(before.mark)
            except kv.ContextFull as error:
                kinds.add("message" if "message" in str(error) else "prompt")
                kinds.add(type(error.run).__name__)
            await filler.close()
            await before.check()
        assert kinds == {"message", "prompt", "Run"}


async def test_the_models_last_position_ends_the_turn(open_desk: OpenDesk) -> None:
    agent = desk_agent("weather")
    async with open_desk(capacity=8192) as ctx:
        most = ctx.model_info.max_positions
        assert most is not None
        trunk = await agent.trunk(ctx)
        await trunk.extend([5] * (most - len(trunk) - 40))
        before = await Before.of(ctx, trunk)
        await fails(lambda: agent.run(trunk, NO_CALL * 20), kv.PositionsExhausted)
        await before.check()
        await fails(lambda: agent.run(trunk, TWO_CALLS), kv.PositionsExhausted)
        await before.check()


async def test_a_branch_that_is_closed_in_a_turn_ends_it(open_desk: OpenDesk) -> None:
    async def close(ctx: kv.RunContext[Any], product: str) -> int:
        ctx.branch.close()
        return 3

    agent = desk_agent(tools=[as_tool("stock", close, takes_context=True)])
    async with open_desk() as ctx:
        trunk = await agent.trunk(ctx)
        before = await Before.of(ctx, trunk)
        await fails(lambda: _on_a_fork(agent, trunk), kv.BranchClosed)
        await before.check()


async def _on_a_fork(agent: kv.Agent[Any, str], trunk: kv.Branch) -> None:
    await agent.run(await trunk.fork(), ONE_CALL)


async def test_the_context_may_be_left_in_a_turn(open_desk: OpenDesk) -> None:
    agent = desk_agent(tools=[as_tool("stock", stuck)])
    outcome: list[BaseException] = []
    tasks = live_tasks()

    async def turn(branch: kv.Branch) -> None:
        try:
            await agent.run(branch, ONE_CALL)
        except kv.AgentKVError as error:
            outcome.append(error)

    async with anyio.create_task_group() as group:
        async with open_desk() as ctx:
            branch = await agent.trunk(ctx)
            group.start_soon(turn, branch)
            await after_forwards(ctx, 3)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert [type(error) for error in outcome] in ([kv.ContextClosed], [])
    assert live_tasks() == tasks


async def test_a_denied_call_does_not_end_the_turn_and_a_callback_that_fails_does(open_desk: OpenDesk) -> None:
    agent = desk_agent(tools=[as_tool("weather", approve=True)], max_rounds=1)

    def fail(event: kv.events.ApprovalAsked) -> bool:
        raise RuntimeError("the person is gone")

    async with open_desk() as ctx:
        before = await Before.of(ctx, await agent.trunk(ctx))
        error = await fails(lambda: agent.run(before.branch, TWO_CALLS), kv.LimitReached)
        assert [call.status for call in error.run.calls] == ["denied", "denied"]  # type: ignore[attr-defined]
        await before.check()
        error = await fails(lambda: agent.run(before.branch, TWO_CALLS, approve=fail), RuntimeError, "person is gone")
        assert error.run.rounds == 1  # type: ignore[attr-defined]
        await before.check()


async def test_a_step_is_a_transaction_too(open_desk: OpenDesk) -> None:
    agent = desk_agent(tools=[as_tool("weather", broken, on_error="raise")])
    async with open_desk() as ctx:
        trunk = await agent.trunk(ctx)
        await trunk.extend([{"role": "user", "content": TWO_CALLS}])
        before = await Before.of(ctx, trunk)
        await fails(lambda: agent.step(trunk), kv.ToolFailed)
        await before.check()


async def test_several_tasks_on_one_branch_take_one_turn(open_desk: OpenDesk) -> None:
    agent = desk_agent("weather")
    outcomes: list[str] = []
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)

        async def turn() -> None:
            try:
                outcomes.append((await agent.run(branch, TWO_CALLS)).text)
            except kv.BranchBusy:
                outcomes.append("busy")

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(turn)
        assert sorted(outcomes)[1:] == ["busy"] * 3
        assert [message.role for message in branch.messages[1:]].count("user") == 1
