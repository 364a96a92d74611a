"""Turns that were steered, and started ones, that a process left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

import agentkv as kv
from tests.agentkv.conftest import anyio_backend, event_loop_goes_first  # noqa: F401 - the one is a fixture
from tests.waiting import until

from .crashes import QUESTION, Crash, call, copied, left_by, only_left, opened

pytestmark = pytest.mark.anyio

LOOK = call("look", what="a")


def desk(crash: Crash, **options: Any) -> kv.Agent[None, str]:
    return kv.Agent("You are Nano.", tools=[crash.tool("look", idempotent=True), crash.tool("pay")], **options)


async def test_a_turn_goes_on_behind_words(tmp_path: Path) -> None:
    """They are on the branch, and the call that was made again behind them is none that repeats."""
    crash, rounds = Crash(tmp_path / "runs.db", "look a"), 0  # what the second one leaves replaces the first's
    run: kv.RunningTurn[str]

    def look_again(_: kv.RunContext[None], record: kv.CallRecord) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            run.steer("Look again.")

    async with opened([LOOK, LOOK, "It is 3."], crash.path) as (ctx, _):
        run = desk(crash, after_call=look_again).start(await desk(crash).trunk(ctx), QUESTION)
        whole = await run
    assert [done for done, _ in crash.ran] == ["look a"] * 2
    second = Crash(crash.crashed)
    async with opened(["It is 3."], crash.crashed) as (ctx, journal):
        resumed = await (await only_left(journal, ctx)).resume(desk(second))
        assert await left_by(journal, ctx) == []
    assert [done for done, _ in second.ran] == ["look a"]
    assert [record.status for record in resumed.calls] == ["done"] * 2
    assert [message.content for message in resumed.messages if message.role == "user"] == [QUESTION, "Look again."]
    assert (resumed.text, resumed.usage, resumed.messages) == (whole.text, whole.usage, whole.messages)


async def test_a_started_turn_that_its_context_ends_is_left(tmp_path: Path) -> None:
    crash = Crash(tmp_path / "runs.db")
    async with opened([LOOK, "It is 3."], crash.path) as (ctx, journal):
        whole = await desk(crash).run(await desk(crash).trunk(ctx), QUESTION)
    crash = Crash(tmp_path / "others.db")

    def held(_: kv.RunContext[None], record: kv.CallRecord) -> None:
        run.pause()

    async with opened(lambda prompt: LOOK, crash.path) as (ctx, _):
        run = desk(crash, after_call=held).start(await desk(crash).trunk(ctx), QUESTION)
        await until(lambda: crash.ran and run.paused)
    with pytest.raises(kv.ContextClosed):
        await run
    async with opened(["It is 3."], crash.path) as (ctx, journal):
        resumed = await (await only_left(journal, ctx)).resume(desk(crash))
    assert (resumed.text, resumed.usage, resumed.messages) == (whole.text, whole.usage, whole.messages)
    assert [done for done, _ in crash.ran] == ["look a"]


@pytest.mark.parametrize("how", ["stop", "words"])
async def test_a_resumed_stream_is_steered(tmp_path: Path, how: str) -> None:
    crash = Crash(tmp_path / "runs.db", "pay b")
    async with opened([call("pay", what="b"), "It is 3."], crash.path) as (ctx, _):
        await desk(crash).run(await desk(crash).trunk(ctx), QUESTION)
    script = ["It is 3."] if how == "stop" else ["It is 3.", "It is 4."]
    async with opened(script, crash.crashed) as (ctx, journal):
        stream = (await only_left(journal, ctx)).stream(desk(Crash(crash.crashed)))
        async with stream as events:
            async for event in events:
                if isinstance(event, kv.events.TextDelta):
                    break
            if how == "stop":
                events.stop()
                with pytest.raises(kv.TurnStopped):
                    async for _ in events:
                        pass
            else:
                words = events.steer("Sure?")
                assert [event async for event in events]
                assert words.entered
                assert events.run.text == "It is 4."
        assert await left_by(journal, ctx) == []


@pytest.mark.parametrize("at_once", [False, True])
async def test_words_are_there_once_steer_returns(tmp_path: Path, at_once: bool) -> None:
    """A process that ends right behind them leaves them, before any message is complete."""
    crash = Crash(tmp_path / "runs.db")
    async with opened([LOOK, "It is 3."], crash.path) as (ctx, _):
        run = desk(crash).start(await desk(crash).trunk(ctx), QUESTION)
        async for event in run.events():
            if isinstance(event, kv.events.CallStarted):
                await run.steer("Look again.", at_once)
                run.pause()
                copied(crash.path, "crashed.db")
                break
        run.resume()
        whole = await run
    async with opened(["It is 3."], crash.crashed) as (ctx, journal):
        left = await only_left(journal, ctx)
        assert left.rounds == 1
        resumed = await left.resume(desk(Crash(crash.crashed)))
    assert [message.content for message in resumed.messages if message.role == "user"] == [QUESTION, "Look again."]
    assert (resumed.text, resumed.rounds) == ("It is 3.", 2)
    assert whole.messages[: len(resumed.messages)] == resumed.messages


async def test_a_message_that_words_cut_short_is_one_of_the_rounds_for_who_resumes(tmp_path: Path) -> None:
    crash = Crash(tmp_path / "runs.db")
    async with opened(["It is three. " * 40, "It is 4."], crash.path) as (ctx, _), event_loop_goes_first():
        run = desk(crash).start(await desk(crash).trunk(ctx), QUESTION)
        async for event in run.events():
            if isinstance(event, kv.events.TextDelta):
                await run.steer("Sure?", at_once=True)
                copied(crash.path, "crashed.db")
                break
        whole = await run
    async with opened(["It is 4."], crash.crashed) as (ctx, journal):
        resumed = await (await only_left(journal, ctx)).resume(desk(crash))
    assert (resumed.text, resumed.rounds, resumed.messages) == (whole.text, whole.rounds, whole.messages)
    assert (whole.text, whole.rounds) == ("It is 4.", 1)


async def test_forks_of_a_turn_in_flight_are_left_as_the_turn_is(tmp_path: Path) -> None:
    """The fork that begins beside a call that runs has it from the turn; a process that resumes both makes it twice."""
    crash, begun, goes_on = Crash(tmp_path / "runs.db"), anyio.Event(), anyio.Event()

    async def wait(what: str) -> str:
        begun.set()
        await goes_on.wait()
        return f"{what} done"

    def desk(waits: Any) -> kv.Agent[None, str]:
        tool = kv.tool(name="wait", description="to wait", idempotent=True, early=False)(waits)
        return kv.Agent("You are Nano.", tools=[crash.tool("look"), tool])

    script = [call("look", what="a"), call("wait", what="b"), "It is 3.", "It is 3."]
    async with opened(script, crash.path) as (ctx, journal):
        run = desk(wait).start(await desk(wait).trunk(ctx), QUESTION)
        await begun.wait()
        (fork,) = await run.fork(1)
        while len(await journal.runs()) < 2:
            await anyio.lowlevel.checkpoint()
        copied(crash.path, "crashed.db")
        goes_on.set()
        whole = [await run, await fork]
        assert {info.status for info in await journal.runs()} == {"finished"}
    assert len(crash.ran) == 1
    async with opened(["It is 3."] * 2, crash.crashed) as (ctx, journal):
        left = await left_by(journal, ctx)
        assert [len(each.calls) for each in left] == [2, 2]
        for each, before in zip(left, whole, strict=True):
            resumed = await each.resume(desk(wait))
            assert (resumed.text, resumed.usage, resumed.messages) == (before.text, before.usage, before.messages)
        assert await left_by(journal, ctx) == []
    assert len(crash.ran) == 1


@pytest.mark.parametrize("keep_partial", [False, True])
@pytest.mark.parametrize("keep", [None, False, True])
async def test_a_stopped_turn_leaves_its_branch_as_it_stays(
    tmp_path: Path, keep_partial: bool, keep: bool | None
) -> None:
    """Also where `stop` says otherwise than the turn was begun."""
    crash = Crash(tmp_path / "runs.db")
    async with opened([LOOK, "It is 3."], crash.path) as (ctx, journal):
        branch = await desk(crash).trunk(ctx)
        await journal.track(branch, "anna")
        before = branch.tokens
        run = desk(crash).start(branch, QUESTION, keep_partial=keep_partial)
        async for event in run.events():
            if isinstance(event, kv.events.TextDelta):
                run.stop(keep)
                break
        with pytest.raises(kv.TurnStopped):
            await run
        kept, messages = branch.tokens, branch.messages
        assert (kept != before) == (keep_partial if keep is None else keep)
        assert await left_by(journal, ctx) == []
    async with opened([], crash.path) as (ctx, journal):
        again = await journal.branch(ctx, "anna")
        assert (again.tokens, again.messages) == (kept, messages)


async def test_a_turn_that_did_not_get_its_branch_records_nothing_of_it(tmp_path: Path) -> None:
    """Another turn has it, and that one is not whole yet."""
    crash, seen = Crash(tmp_path / "runs.db"), list[str]()

    async def ask(context: kv.RunContext[None]) -> None:
        if not seen:
            seen.append("asked")
            with pytest.raises(kv.BranchBusy):
                await desk(crash).run(branch, "Again?", keep_partial=True)
            copied(crash.path, "crashed.db")

    async with opened(["It is 3."], crash.path) as (ctx, journal):
        agent = desk(crash, before_round=ask)
        branch = await agent.trunk(ctx)
        await journal.track(branch, "anna")
        before = branch.tokens
        await agent.run(branch, QUESTION)
    async with opened([], crash.crashed) as (ctx, journal):
        assert (await journal.branch(ctx, "anna")).tokens == before
