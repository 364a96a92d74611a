"""Turns in a task of their own: awaited by anybody, or by nobody, to the end of their Context."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

import agentkv as kv
from tests.waiting import until

from .before import live_tasks
from .conftest import ONE_CALL, OpenDesk, SlowReplies, as_tool, desk_agent

pytestmark = pytest.mark.anyio


async def test_start_does_what_run_does(open_desk: OpenDesk) -> None:
    agent = desk_agent("stock")
    async with open_desk() as ctx:
        one, other = await (await agent.trunk(ctx)).fork(2)
        run = await agent.run(one, ONE_CALL)
        started = agent.start(other, ONE_CALL)
        assert (started.done, started.branch is other) == (False, True)
        assert "running" in repr(started)
        same = await started
        assert started.done
        assert (same.text, same.usage, other.tokens) == (run.text, run.usage, one.tokens)
        assert await started is same
        assert "done" in repr(started)


async def test_many_await_and_one_that_is_cancelled_cancels_nothing(slow_replies: SlowReplies) -> None:
    agent = kv.Agent("You are Nano.")
    async with slow_replies(["So be it."]) as ctx:
        run = agent.start(await agent.trunk(ctx), "And?")
        got: list[str] = []

        async def wait() -> None:
            got.append((await run).text)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            group.start_soon(wait)
            with anyio.CancelScope() as scope:
                scope.cancel()
                await run
        assert scope.cancelled_caught
        assert got == ["So be it."] * 2


async def test_an_error_is_raised_to_each(open_desk: OpenDesk) -> None:
    def fail(**_: Any) -> None:
        raise LookupError("never")

    agent = desk_agent(tools=[as_tool("stock", fail, on_error="raise")])
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        before = branch.tokens
        run = agent.start(branch, ONE_CALL)
        for _ in range(2):
            with pytest.raises(kv.ToolFailed) as caught:
                await run
        assert caught.value.run is not None
        assert branch.tokens == before
        with pytest.raises(kv.ToolFailed):
            await run.events().__anext__()


@pytest.mark.parametrize(
    ("how", "error"),
    [
        (lambda agent, branch: agent.start("no branch"), kv.InvalidInput),
        (lambda agent, branch: agent.start(branch, "?", nonsense=1), kv.InvalidInput),
        (lambda agent, branch: agent.start(branch, "?", approve=5), kv.InvalidInput),
    ],
)
async def test_bad_input_is_refused_at_once(open_desk: OpenDesk, how: Any, error: type[Exception]) -> None:
    agent = desk_agent("stock")
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        with pytest.raises(error):
            how(agent, branch)
        await branch.close()
        with pytest.raises(kv.BranchClosed):
            agent.start(branch, "?")
    with pytest.raises(kv.ContextClosed):
        agent.start(branch, "?")


async def test_a_branch_in_a_turn_takes_no_other(slow_replies: SlowReplies) -> None:
    agent = kv.Agent("You are Nano.")
    async with slow_replies(lambda _: "So be it.") as ctx:
        branch = await agent.trunk(ctx)
        outcomes: list[str] = []
        for run in [agent.start(branch, "And?"), agent.start(branch, "Or?")]:
            try:
                outcomes.append((await run).text)
            except kv.BranchBusy:
                outcomes.append("busy")
        assert sorted(outcomes) == ["So be it.", "busy"]  # the loop decides which comes first
        run = agent.start(branch, "And?")
        run.pause()  # it has its branch until somebody looks
        await until(lambda: branch._handle.state.lease is not None)
        with pytest.raises(kv.BranchBusy):
            agent.start(branch, "Or?")
        await run.stop()
        with pytest.raises(kv.TurnStopped):
            await run


async def test_leaving_the_context_ends_turns(caplog: pytest.LogCaptureFixture) -> None:
    agent = kv.Agent("You are Nano.")
    tasks = live_tasks()
    async with kv.testing.replies(lambda _: "So be it.") as ctx:
        trunks = [await agent.trunk(ctx) for _ in range(3)]
        running, paused = [agent.start(trunk, "And?") for trunk in trunks[:2]]
        running.pause()
        paused.pause()
        await until(lambda: len(trunks[1].messages) == 2)
        fresh = agent.start(trunks[2], "And?")
    assert live_tasks() == tasks
    for run in (running, paused, fresh):
        assert run.done
        with pytest.raises(kv.ContextClosed) as caught:
            await run
        assert caught.value.run is not None
    del running, paused, fresh, run
    gc.collect()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("dropped", ["before", "behind"])
async def test_an_error_that_nobody_awaited_is_logged(
    open_desk: OpenDesk, caplog: pytest.LogCaptureFixture, dropped: str
) -> None:
    def fail(**_: Any) -> None:
        raise LookupError("never")

    agent = desk_agent(tools=[as_tool("stock", fail, on_error="raise")])
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        run: kv.RunningTurn[str] | None = agent.start(branch, ONE_CALL)
        if dropped == "behind":
            assert run is not None
            await until(lambda: run.done)
        run = None
        gc.collect()
        await until(lambda: [r for r in caplog.records if "nobody awaited" in r.message])
        assert "ToolFailed" in caplog.text


async def test_who_reads_the_events_of_a_dropped_turn_hears_of_its_end(
    open_desk: OpenDesk, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_desk() as ctx:
        agent = desk_agent("weather", max_tokens=2)
        events = agent.start(await agent.trunk(ctx), "And?").events()
        gc.collect()
        with pytest.raises(kv.LimitReached):
            _ = [event async for event in events]
        assert "nobody awaited" not in caplog.text


async def test_a_dropped_turn_goes_on(slow_replies: SlowReplies) -> None:
    agent = kv.Agent("You are Nano.")
    async with slow_replies(["So be it."]) as ctx:
        branch = await agent.trunk(ctx)
        agent.start(branch, "And?")
        gc.collect()
        await until(lambda: branch.messages[-1].content == "So be it." and branch._handle.state.lease is None)


async def test_events_are_read_from_now_on_by_anybody(slow_replies: SlowReplies) -> None:
    agent = kv.Agent("You are Nano.")
    async with slow_replies(["So be it."]) as ctx:
        run = agent.start(await agent.trunk(ctx), "And?")
        first, second = run.events(), run.events()
        texts = [event.text async for event in first if isinstance(event, kv.events.TextDelta)]
        assert "".join(texts) == "So be it."
        assert len(texts) > 4
        seen = [event async for event in second]
        assert isinstance(seen[-1], kv.events.Finished)
        assert seen[-1].run is await run
        assert [event async for event in run.events()] == []


async def test_a_turn_stopped_before_it_began(open_desk: OpenDesk) -> None:
    listed = anyio.Event()

    class Slow:
        async def tools(self) -> list[kv.Tool[Any, ..., Any]]:
            if listed.is_set():
                await anyio.sleep_forever()
            return []

    agent = kv.Agent("You are Nano.", toolsets=[Slow()])
    async with open_desk() as ctx:
        branch = await agent.trunk(ctx)
        before = branch.tokens
        listed.set()
        for ticks in (0, 5):
            run = agent.start(branch, "And?")
            for _ in range(ticks):
                await checkpoint()
            await run.stop()
            with pytest.raises(kv.TurnStopped) as caught:
                await run
            assert caught.value.run is not None
            assert branch.tokens == before


def test_a_context_that_is_torn_down_takes_its_turns_along() -> None:
    """Nothing can be awaited any more, and nothing hangs or warns."""
    runs: list[kv.RunningTurn[str]] = []

    async def main() -> None:
        agent = kv.Agent("You are Nano.")
        async with kv.testing.replies(lambda _: "So be it.", threads=1) as ctx:
            runs.append(agent.start(await agent.trunk(ctx), "And?"))
            runs[0].pause()
            await until(lambda: len(runs[0].branch.messages) == 2)
            await checkpoint()
            stopped.append(ctx)
            await anyio.sleep_forever()

    stopped: list[kv.Context] = []
    loop = asyncio.new_event_loop()
    task = loop.create_task(main())
    while not stopped:
        loop.run_until_complete(asyncio.sleep(0))
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    assert runs[0].done
    assert asyncio.all_tasks(loop) == set()
    loop.close()
