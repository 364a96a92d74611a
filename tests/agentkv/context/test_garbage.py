"""What a program lets go of is free at once, whatever failed before: nothing waits for Python's collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest

import agentkv as kv
from agentkv._context.handle import handle_of

from ..conftest import OpenContext

pytestmark = pytest.mark.anyio

CAPACITY = 40
TOO_MUCH = [*range(10, 10 + 2 * CAPACITY)]


async def _reload(branch: kv.Branch, ctx: kv.Context) -> None:
    await branch.offload()
    async with await ctx.branch(TOO_MUCH[: CAPACITY - 1]):
        await branch.logits()


async def _turn(branch: kv.Branch, ctx: kv.Context) -> None:
    await kv.Agent("You are Nano.", max_tokens=4).run(branch, "word " * CAPACITY)


FAILS: dict[str, Callable[[kv.Branch, kv.Context], Awaitable[Any]]] = {
    "extend": lambda branch, ctx: branch.extend(TOO_MUCH),
    "a prompt": lambda branch, ctx: ctx.branch(TOO_MUCH),
    "select": lambda branch, ctx: branch.select(["word " * CAPACITY, "no"]),
    "fork": lambda branch, ctx: branch.fork(10_000),
    "cells that come back": _reload,
    "one of several": lambda branch, ctx: kv.gather(branch.fork(), branch.extend(TOO_MUCH)),
    "a turn": _turn,
    "rollback": lambda branch, ctx: branch.rollback(999),
}


@pytest.fixture
def collector_rests() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collector_rests")
@pytest.mark.parametrize("what", FAILS)
async def test_a_branch_is_gone_with_its_last_name(open_context: OpenContext, what: str) -> None:
    async with open_context(capacity=CAPACITY) as ctx:

        async def fail() -> weakref.ref[Any]:
            branch = await ctx.branch([5, 6, 7])
            with pytest.raises(kv.AgentKVError) as failure:
                await FAILS[what](branch, ctx)
            del failure
            return weakref.ref(handle_of(branch).record)

        record = await fail()
        await anyio.wait_all_tasks_blocked()  # tasks that have ended are let go of
        assert record() is None
        await (await ctx.branch([5])).close()
        assert (ctx.stats.branches, ctx.stats.cells_used) == (0, 0)


async def _read(branch: kv.Branch) -> None:
    async with branch.stream(max_tokens=4) as stream:
        async for _ in stream:
            pass


async def _agent(branch: kv.Branch) -> None:
    with pytest.raises(kv.AgentKVError):  # what the tiny model says is no end of a turn
        await kv.Agent("You are Nano.", max_tokens=4).run(branch, "a")


USES: dict[str, Callable[[kv.Branch], Awaitable[Any]]] = {
    "generate": lambda branch: branch.generate(max_tokens=4),
    "stream": _read,
    "run": _agent,
    "fork": lambda branch: branch.fork(2),
}


@pytest.mark.usefixtures("collector_rests")
@pytest.mark.parametrize("how", USES)
async def test_so_is_one_that_was_used(open_context: OpenContext, how: str) -> None:
    async with open_context() as ctx:

        async def use() -> weakref.ref[Any]:
            branch = await ctx.branch([5, 6, 7])
            await USES[how](branch)
            return weakref.ref(handle_of(branch).record)

        record = await use()
        await anyio.wait_all_tasks_blocked()  # tasks that have ended are let go of
        assert record() is None


async def _to_its_end(agent: kv.Agent[None, str], branch: kv.Branch) -> None:
    async with agent.stream(branch, "How much is it?") as events:
        said = [event async for event in events]
    assert isinstance(said[-1], kv.events.Finished)
    assert events.run.text == SAID


async def _left(agent: kv.Agent[None, str], branch: kv.Branch) -> None:
    async with agent.stream(branch, "How much is it?") as events:
        await anext(events)


async def _left_and_kept(agent: kv.Agent[None, str], branch: kv.Branch) -> None:
    async with agent.stream(branch, "How much is it?", keep_partial=True) as events:
        await anext(events)


async def _not_read(agent: kv.Agent[None, str], branch: kv.Branch) -> None:
    async with agent.stream(branch, "How much is it?"):
        pass


async def _stopped(agent: kv.Agent[None, str], branch: kv.Branch) -> None:
    async with agent.stream(branch, "How much is it?", keep_partial=True) as events:
        await anext(events)
        events.stop()
        with pytest.raises(kv.TurnStopped):
            await anext(events)


async def _not_heard_to_fail(agent: kv.Agent[None, str], branch: kv.Branch) -> None:
    stream = kv.Agent(agent.instructions, max_tokens=2).stream(branch, "How much is it?")
    async with stream:
        await stream._ended.wait()


async def _cancelled(agent: kv.Agent[None, str], branch: kv.Branch) -> None:
    with anyio.CancelScope() as scope:
        async with agent.stream(branch, "How much is it?", keep_partial=True) as events:
            async for _ in events:
                scope.cancel()


async def _run_cancelled(agent: kv.Agent[None, str], branch: kv.Branch) -> None:
    with anyio.CancelScope() as scope:
        await kv.Agent(agent.instructions, before_round=lambda _: scope.cancel()).run(branch, "How much is it?")


async def _started_and_stopped(agent: kv.Agent[None, str], branch: kv.Branch) -> None:
    run = agent.start(branch, "How much is it?")
    await anext(run.events())
    await run.stop()
    for _ in range(2):
        with pytest.raises(kv.TurnStopped) as stopped:
            await run
        assert stopped.value.run is not None
        del stopped


async def _left_in_a_call(agent: kv.Agent[None, str], branch: kv.Branch) -> None:
    @kv.tool
    async def count(what: str) -> int:
        await anyio.sleep_forever()
        return 3

    counting = kv.Agent(agent.instructions, tools=[count])
    async with counting.stream(branch, "Count the trees.", keep_partial=True) as events:
        assert isinstance(await anext(events), kv.events.CallStarted)
        await anyio.wait_all_tasks_blocked()


SAID = "It is 3, or 4."
CALL = kv.testing.call("count", what="trees")
TURNS = {
    "read to its end": _to_its_end,
    "left": _left,
    "left, and its text kept": _left_and_kept,
    "left while a tool ran": _left_in_a_call,
    "not read": _not_read,
    "stopped": _stopped,
    "failed, and nobody heard": _not_heard_to_fail,
    "its reader was cancelled": _cancelled,
    "run, and cancelled": _run_cancelled,
    "started, and stopped": _started_and_stopped,
}


@pytest.mark.usefixtures("collector_rests")
@pytest.mark.parametrize("how", TURNS)
async def test_so_is_one_that_had_a_turn(how: str) -> None:
    script = [CALL] if how == "left while a tool ran" else lambda _: SAID
    async with kv.testing.replies(script, threads=1) as ctx:
        agent = kv.Agent("You are Nano.")

        async def turn() -> weakref.ref[Any]:
            branch = await agent.trunk(ctx)
            await TURNS[how](agent, branch)
            return weakref.ref(handle_of(branch).record)

        record = await turn()
        await anyio.wait_all_tasks_blocked()
        assert record() is None


async def test_a_started_turn_that_failed_can_be_collected(open_context: OpenContext) -> None:
    async with open_context(capacity=CAPACITY) as ctx:

        async def turn() -> weakref.ref[Any]:
            run = kv.Agent("You are Nano.").start(await ctx.branch([5, 6, 7]), "word " * CAPACITY)
            with pytest.raises(kv.ContextFull):
                await run
            return weakref.ref(run)

        run = await turn()
        await anyio.wait_all_tasks_blocked()
        gc.collect()
        assert run() is None
        assert ctx.branches == []


async def test_a_stream_that_did_not_begin_says_why_each_time(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch([5, 6, 7])
        async with branch.stream(max_tokens=300, buffer=1):
            second = branch.stream(max_tokens=3)
            with pytest.raises(kv.BranchBusy):
                await second.__aenter__()
            for _ in range(2):
                with pytest.raises(kv.BranchBusy):
                    second.generation  # noqa: B018
