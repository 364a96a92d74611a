"""What a call became holds for that call, in every process that goes on with its turn."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from pydantic import AfterValidator

import agentkv as kv
from tests.agentkv.conftest import anyio_backend  # noqa: F401 - a fixture

from .crashes import QUESTION, Crash, call, copied, only_left, opened

pytestmark = pytest.mark.anyio

NOT_APPROVED = "it was not approved"


@pytest.mark.parametrize(
    ("why", "read"),
    [("no", "no"), (None, NOT_APPROVED), ("", NOT_APPROVED), (" \n", NOT_APPROVED), ("a\ud800b", "a?b")],
)
async def test_a_denial_is_one_in_another_process(tmp_path: Path, why: str | None, read: str) -> None:
    """Whatever was said of it: a call that was denied is not made."""
    path, ran = tmp_path / "runs.db", list[str]()

    @kv.tool(approve=True, idempotent=True)
    def pay(what: str) -> str:
        "to pay"
        ran.append(what)
        return what

    agent = kv.Agent("You are Nano.", tools=[pay])

    def deny(asked: kv.events.ApprovalAsked) -> None:
        asked.deny(why)

    def show(_: Any, record: kv.CallRecord) -> None:
        copied(path, "crashed.db")

    async with opened([call("pay", what="a"), "Done."], path) as (ctx, _):
        told = kv.Agent("You are Nano.", tools=[pay], after_call=show)
        run = await told.run(await told.trunk(ctx), QUESTION, approve=deny)
    assert run.calls[0].error == f"denied: {read}"
    with sqlite3.connect(tmp_path / "crashed.db") as database:  # the process ended right behind the decision
        database.execute("UPDATE calls SET record = NULL, ended = NULL")
    async with opened(["Done."], tmp_path / "crashed.db") as (ctx, journal):
        resumed = await (await only_left(journal, ctx)).resume(agent, approve=lambda asked: True)
    assert resumed.calls[0].error == run.calls[0].error
    assert ran == []


async def test_a_reason_is_a_text(tmp_path: Path) -> None:
    @kv.tool(approve=True)
    def pay(what: str) -> str:
        "to pay"
        raise AssertionError

    agent = kv.Agent("You are Nano.", tools=[pay])
    async with opened([call("pay", what="a")], tmp_path / "runs.db") as (ctx, _):
        with pytest.raises(kv.InvalidInput, match="why is int 5"):
            await agent.run(await agent.trunk(ctx), QUESTION, approve=lambda asked: asked.deny(5))  # type: ignore[arg-type]


def _is_known(what: str) -> str:
    if what == "x":
        raise ValueError("there is no x")
    return what


@pytest.mark.parametrize(
    ("rounds", "status"),
    [
        ([["a"], ["a"], ["c"]], "repeated"),
        ([["a", "a"], ["a"], ["b"], ["c"]], "repeated"),
        ([["x"], ["c"]], "invalid"),
        ([["a", "x"], ["a"], ["c"]], "invalid"),
    ],
)
async def test_calls_that_did_not_run_stay_what_they_were(tmp_path: Path, rounds: list[list[str]], status: str) -> None:
    """The turn goes on as an undisturbed one: its repeats count, and so do its faults."""
    crash = Crash(tmp_path / "runs.db", "c")

    @kv.tool(idempotent=True, early=False)
    def look(what: Annotated[str, AfterValidator(_is_known)]) -> str:
        "to look"
        crash.here(what)
        return f"{what} seen"

    agent = kv.Agent("You are Nano.", tools=[look])
    script = [[call("look", what=what) for what in calls] for calls in rounds]
    async with opened([*script, "Done."], crash.path) as (ctx, _):
        whole = await agent.run(await agent.trunk(ctx), QUESTION)
    assert status in [record.status for record in whole.calls]
    async with opened(["Done."], copied(crash.crashed, "left.db")) as (ctx, journal):
        run = await (await only_left(journal, ctx)).resume(agent)
    assert [(each.status, each.content) for each in run.calls] == [(each.status, each.content) for each in whole.calls]
    assert (run.text, run.usage, run.messages, run.warnings) == (
        whole.text,
        whole.usage,
        whole.messages,
        whole.warnings,
    )


async def test_what_became_of_a_lost_call_is_not_the_outcome_of_another(tmp_path: Path) -> None:
    """A process ended in a message whose first call had ended, and the next one writes another call there."""
    path, asked = tmp_path / "first.db", list[str]()

    def desk(leaves: str = "") -> kv.Agent[None, str]:
        @kv.tool(idempotent=True, early=False)
        async def ask(task: str) -> str:
            "to ask"
            asked.append(task)
            if leaves == "second.db":
                copied(path.with_name("left.db"), leaves)
            return f"{task} answered"

        def after(*_: Any) -> None:
            if leaves == "left.db":
                copied(path, leaves)

        return kv.Agent("You are Nano.", tools=[ask], after_call=after)

    async with opened([call("ask", task="a"), "Done."], path) as (ctx, _):
        await desk("left.db").run(await desk().trunk(ctx), QUESTION)
    with sqlite3.connect(tmp_path / "left.db") as database:
        database.execute("DELETE FROM messages")
    async with opened([call("ask", task="b"), "Done."], tmp_path / "left.db") as (ctx, journal):
        await (await only_left(journal, ctx)).resume(desk("second.db"))
    async with opened(["Done."], tmp_path / "second.db") as (ctx, journal):
        run = await (await only_left(journal, ctx)).resume(desk())
    assert [(record.arguments, record.content) for record in run.calls] == [({"task": "b"}, "b answered")]
    assert asked == ["a", "b", "b"]


def _said(text: str) -> Any:
    """Replies of a manager, and of its helper, which pays."""
    if "You help" in text:
        if "waited" in text:
            return "helped"
        return call("wait", what="b") if "paid" in text else call("pay", what="a")
    return "All done." if "helped" in text or "error" in text else call("helper", task="it")


@pytest.mark.parametrize("ends", ["cancelled", "failed"])
async def test_a_sub_agent_that_ended_early_pays_once(tmp_path: Path, ends: str) -> None:
    """Its manager goes on in another process: with its turn where that was cancelled, with its fault if it failed."""
    path, paid = tmp_path / "runs.db", Counter[str]()
    is_first = True

    @kv.tool(early=False)
    def pay(what: str) -> str:
        "to pay"
        paid[what] += 1
        return "paid"

    @kv.tool(early=False, idempotent=True, on_error="raise")
    async def wait(what: str) -> str:
        "to wait"
        if is_first and ends == "failed":
            raise RuntimeError("no")
        if is_first:
            scope.cancel()
            await anyio.sleep_forever()
        return "waited"

    helper = kv.Agent("You help.", tools=[pay, wait])
    agent = kv.Agent("You are Nano.", tools=[helper.as_tool("helper", "helps")])
    async with opened(_said, path) as (ctx, journal):
        with anyio.CancelScope() as scope:
            whole = await agent.run(await agent.trunk(ctx), QUESTION)
    with sqlite3.connect(path) as database:  # the process ended behind the helper's turn, before its manager knew
        database.execute("UPDATE runs SET status = 'running', answer = NULL WHERE parent IS NULL")
        manager = "run IN (SELECT id FROM runs WHERE parent IS NULL)"
        database.execute(f"UPDATE calls SET record = NULL, ended = NULL WHERE {manager}")
    is_first = False
    async with opened(_said, path) as (ctx, journal):
        run = await (await only_left(journal, ctx)).resume(agent)
    assert paid == {"a": 1}
    assert run.text == "All done."
    if ends == "failed":
        assert [(each.status, each.content) for each in run.calls] == [(e.status, e.content) for e in whole.calls]
    else:
        assert [each.result for each in run.calls] == ["helped"]


async def test_another_attempt_of_a_sub_agent_begins_anew(tmp_path: Path) -> None:
    """Nothing that its first attempt asked others is the answer to what the second one asks."""
    tasks: list[str] = []

    def reply(text: str) -> Any:
        if "You look" in text:
            return f"seen in attempt {len(tasks)}"
        if "You help" in text:
            if "seen" in text and len(tasks) == 1:
                return call("fail", what="it")
            if "seen" in text:
                return "helped: " + text.rpartition("seen in ")[2][:9]
            tasks.append("")
            return call("looker", task="look")
        return "All done." if "helped" in text else call("helper", task="it")

    @kv.tool(on_error="raise")
    def fail(what: str) -> str:
        "to fail"
        raise RuntimeError(what)

    looker = kv.Agent("You look.").as_tool("looker", "looks")
    helper = kv.Agent("You help.", tools=[looker, fail]).as_tool("helper", "helps")
    agent = kv.Agent("You are Nano.", tools=[replace(helper, retries=1)])
    async with opened(reply, tmp_path / "runs.db") as (ctx, journal):
        run = await agent.run(await agent.trunk(ctx), QUESTION)
        assert [record.result for record in run.calls] == ["helped: attempt 2"]
        assert [info.status for info in await journal.runs()] == ["finished"] * 3


async def test_what_a_fork_in_flight_begins_is_its_own(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"

    def reply(text: str) -> Any:
        return "helped" if "You help" in text else "Done." if "helped" in text else call("helper", task="it")

    agent = kv.Agent("You are Nano.", tools=[kv.Agent("You help.").as_tool("helper", "helps")])
    async with opened(reply, path) as (ctx, journal):
        run = agent.start(await agent.trunk(ctx), QUESTION)
        run.pause()
        (fork,) = await run.fork(1)
        run.resume()
        fork.resume()
        assert [(await each).text for each in (run, fork)] == ["Done."] * 2
        infos = await journal.runs()
    turns = {info.id for info in infos if info.parent is None}
    assert len(turns) == 2
    assert {info.id for info in infos} == turns | {f"{turn}-0" for turn in turns}
    assert {info.status for info in infos} == {"finished"}
