"""Turns that another process left go on, as if nothing had been."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest

import agentkv as kv
from tests.agentkv.conftest import anyio_backend  # noqa: F401 - a fixture
from tests.waiting import until

from .crashes import QUESTION, Crash, call, copied, left_by, only_left, opened

pytestmark = pytest.mark.anyio

TWO_ROUNDS = [call("look", what="a"), call("pay", what="b"), "It is 3."]
PAY, INVALID = call("pay", what="b"), call("pay", what="")


def desk(crash: Crash, **options: Any) -> kv.Agent[None, str]:
    tools = [crash.tool("pay"), crash.tool("look", idempotent=True)]
    return kv.Agent("You are Nano.", tools=tools, **{"before_round": lambda _: crash.here("round"), **options})


async def crashed(tmp_path: Path, at: str, script: Any = TWO_ROUNDS, **options: Any) -> tuple[Crash, kv.Run[str]]:
    """A turn that ended undisturbed, and what a process would have left that ended `at` that call."""
    crash = Crash(tmp_path / "runs.db", at)
    async with opened(script, crash.path) as (ctx, _):
        agent = desk(crash, **options)
        run = await agent.run(await agent.trunk(ctx), QUESTION)
    return crash, run


@pytest.mark.parametrize(
    ("at", "goes_on", "ran"),
    [
        ("round", TWO_ROUNDS[2:], []),
        ("look a", TWO_ROUNDS[1:], ["look a", "pay b"]),
        ("pay b", TWO_ROUNDS[2:], []),
    ],
)
async def test_a_turn_goes_on_from_its_last_whole_step(tmp_path: Path, at: str, goes_on: Any, ran: list[str]) -> None:
    crash, whole = await crashed(tmp_path, at)
    second = Crash(crash.crashed)
    async with opened(goes_on, crash.crashed) as (ctx, journal):
        left = await only_left(journal, ctx)
        assert left.prompt == [{"role": "user", "content": QUESTION}]
        assert left.instructions == "You are Nano."
        assert left.tools == ["pay", "look"]
        run = await left.resume(desk(second))
        assert await left_by(journal, ctx) == []
    assert [done for done, _ in second.ran] == ran
    assert run.text == whole.text
    assert run.rounds == whole.rounds
    assert [record.name for record in run.calls] == [record.name for record in whole.calls]
    unknown = [record.name for record in run.calls if record.status == "unknown"]
    assert unknown == (["pay"] if at == "pay b" else [])
    if not unknown:
        assert run.usage == whole.usage
        assert run.messages == whole.messages


@pytest.mark.parametrize(
    ("script", "written", "statuses"),
    [
        ([PAY, PAY, PAY, "It is 3."], 3, ["done", "repeated", "repeated"]),  # then it is asked for the answer
        ([PAY, PAY, call("look", what="a"), PAY, "It is 3."], 3, ["done", "repeated", "done", "done"]),
        ([INVALID, INVALID, INVALID, "It is 3."], 2, ["invalid", "repeated", "repeated"]),
        ([INVALID, PAY, INVALID, "It is 3."], 2, ["invalid", "done", "invalid"]),
    ],
)
async def test_calls_that_were_refused_are_refused_again(
    tmp_path: Path, script: list[Any], written: int, statuses: list[str]
) -> None:
    """A turn that goes on behind them makes the calls that it would have made, and no others."""
    rounds = 0

    def next_round(_: kv.RunContext[Any]) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == written + 1:
            copied(crash.path, "crashed.db")

    crash = Crash(tmp_path / "runs.db")
    async with opened(script, crash.path) as (ctx, _):
        agent = desk(crash, before_round=next_round)
        whole = await agent.run(await agent.trunk(ctx), QUESTION)
    assert [record.status for record in whole.calls][: len(statuses)] == statuses
    second = Crash(crash.crashed)
    async with opened(script[written:], crash.crashed) as (ctx, journal):
        run = await (await only_left(journal, ctx)).resume(desk(second))
    ran_first = [record.status for record in whole.calls[:written]].count("done")
    assert [done for done, _ in second.ran] == [done for done, _ in crash.ran][ran_first:]
    assert [record.status for record in run.calls] == [record.status for record in whole.calls]
    assert (run.text, run.usage, run.messages) == (whole.text, whole.usage, whole.messages)


async def test_calls_keep_their_keys(tmp_path: Path) -> None:
    crash, _ = await crashed(tmp_path, "look a")
    second = Crash(crash.crashed)
    async with opened(TWO_ROUNDS[1:], crash.crashed) as (ctx, journal):
        await (await only_left(journal, ctx)).resume(desk(second))
    assert second.ran == crash.ran
    assert len({key for _, key in crash.ran}) == 2


async def test_a_call_that_may_not_run_twice_has_an_unknown_outcome(tmp_path: Path) -> None:
    crash, _ = await crashed(tmp_path, "pay b")
    second = Crash(crash.crashed)
    async with opened(TWO_ROUNDS[2:], crash.crashed) as (ctx, journal):
        left = await only_left(journal, ctx)
        assert [(made.request.name, made.started, made.record is not None) for made in left.calls] == [
            ("look", True, True),
            ("pay", True, False),
        ]
        run = await left.resume(desk(second))
    assert second.ran == []
    assert [record.status for record in run.calls] == ["done", "unknown"]
    assert run.calls[1].ran
    assert "not known" in run.calls[1].content
    assert run.messages[4].content == run.calls[1].content


async def test_approvals_that_were_given_count(tmp_path: Path) -> None:
    crash = Crash(tmp_path / "runs.db", "boss b")
    asked: list[str] = []

    async def approve(asks: kv.events.ApprovalAsked) -> bool:
        what = asks.call.arguments["what"]
        asked.append(what)
        if what == "a":
            return False
        await until(lambda: "a" in asked)
        while any(each.call.arguments["what"] == "a" for each in await journal.approvals()):
            pass  # that it was denied is on its way to the journal: calls of one reply do not wait for each other
        return True

    script = [[call("boss", what="a"), call("boss", what="b")], "Done."]
    for path, count in ((crash.path, 2), (crash.crashed, 0)):
        tool = (crash if count else Crash(path)).tool("boss", approve=True, idempotent=True)
        agent = kv.Agent("You are Nano.", tools=[tool])
        asked.clear()
        async with opened(script[2 - max(count, 1) :], path) as (ctx, journal):
            if count:
                run = await agent.run(await agent.trunk(ctx), QUESTION, approve=approve)
            else:
                run = await (await only_left(journal, ctx)).resume(agent, approve=approve)
        assert len(asked) == count
        assert [record.status for record in run.calls] == ["denied", "done"]


async def test_a_resumed_turn_that_fails_leaves_the_branch_as_before_the_turn(tmp_path: Path) -> None:
    crash, _ = await crashed(tmp_path, "pay b")
    async with opened([call("look", what="d")], crash.crashed) as (ctx, journal):
        left = await only_left(journal, ctx)
        with pytest.raises(kv.LimitReached) as failed:
            await left.resume(desk(Crash(crash.crashed), max_calls=2))
        assert failed.value.run is not None
        assert [record.name for record in failed.value.run.calls] == ["look", "pay"]
        assert await left_by(journal, ctx) == []
        (info,) = await journal.runs()
        assert info.status == "failed"
        assert "LimitReached" in (info.answer or "")


async def test_room_that_was_made_in_a_turn_comes_back_when_it_fails(tmp_path: Path) -> None:
    crash = Crash(tmp_path / "runs.db", "look b")
    script = ["Yes."] * 3 + [call("look", what="a"), call("look", what="b"), "It is 3."]
    options: dict[str, Any] = {"overflow": kv.overflow.DropOldest(keep=1)}
    async with kv.testing.replies(script, threads=1, capacity=176, journal=crash.path, **options) as ctx:
        agent = desk(crash)
        branch = await agent.trunk(ctx)
        for number in range(3):
            await agent.run(branch, f"Question {number} {'word ' * 12}")
        before = branch.tokens
        run = await agent.run(branch, QUESTION)
        assert len(branch.messages) < 8 + len(run.messages)
    journal = kv.Journal(crash.crashed)
    async with kv.testing.replies([], threads=1, capacity=1024, journal=journal) as ctx:
        left, lengths = await only_left(journal, ctx), list[int]()

        def stop(context: kv.RunContext[Any]) -> None:
            raise RuntimeError("no")

        async with left.stream(desk(Crash(crash.crashed), before_round=stop)) as events:
            with pytest.raises(RuntimeError):
                await _lengths_rolled_back_to(events, lengths)
        assert lengths == [len(before)]


async def _lengths_rolled_back_to(events: Any, lengths: list[int]) -> None:
    async for event in events:
        lengths += [event.length] if isinstance(event, kv.events.RolledBack) else []


async def test_turns_of_sub_agents_go_on_in_their_call(tmp_path: Path) -> None:
    crash = Crash(tmp_path / "runs.db", "pay s")

    def agents(of: Crash) -> kv.Agent[None, str]:
        helper = kv.Agent("You help.", tools=[of.tool("look", idempotent=True), of.tool("pay")])
        return kv.Agent("You are Nano.", tools=[helper.as_tool("helper", "helps"), of.tool("look", idempotent=True)])

    script = [call("helper", task="it"), call("look", what="r"), call("pay", what="s"), "helped", "All done."]
    async with opened(script, crash.path) as (ctx, _):
        agent = agents(crash)
        whole = await agent.run(await agent.trunk(ctx), QUESTION)
    assert whole.text == "All done."
    second = Crash(crash.crashed)
    async with opened(["helped", "All done."], crash.crashed) as (ctx, journal):
        left = await only_left(journal, ctx)
        run = await left.resume(agents(second))
        assert second.ran == []
        assert run.text == whole.text
        assert [(record.name, record.result) for record in run.calls] == [("helper", "helped")]
        infos = await journal.runs()
        assert [(info.status, info.parent is None) for info in infos] == [("finished", True), ("finished", False)]


async def test_steps_and_streams_go_on(tmp_path: Path) -> None:
    crash = Crash(tmp_path / "runs.db", "look b")
    script = [[call("look", what="a")], [call("look", what="b")], "It is 3."]
    async with opened(script, crash.path) as (ctx, _):
        agent = desk(crash)
        branch = await agent.trunk(ctx)
        await branch.extend([{"role": "user", "content": QUESTION}])
        while not (await agent.step(branch)).done:
            pass
    async with opened([], copied(crash.crashed, "step.db")) as (ctx, journal):
        run = await (await only_left(journal, ctx)).resume(desk(Crash(crash.path)))
        assert [record.status for record in run.calls] == ["done"]
        with pytest.raises(kv.OutputIncomplete):
            _ = run.output
    async with opened([], copied(crash.crashed, "stream.db")) as (ctx, journal):
        left = await only_left(journal, ctx)
        async with left.stream(desk(Crash(crash.path))) as events:
            kinds = [type(event).__name__ async for event in events]
    assert kinds == ["CallStarted", "CallFinished", "Finished"]


async def test_rules_of_one_turn_hold_when_it_goes_on(tmp_path: Path) -> None:
    crash = Crash(tmp_path / "runs.db", "look a")
    script = [call("look", what="a"), call("pay", what="b")]
    async with opened(script, crash.path) as (ctx, _):
        agent = desk(crash)
        run = await agent.run(await agent.trunk(ctx), QUESTION, final_tool="pay", required=["look"])
    assert run.output == "pay b done"
    async with opened(script, crash.crashed) as (ctx, journal):
        resumed = await (await only_left(journal, ctx)).resume(desk(Crash(crash.path)))
    assert resumed.output == run.output


async def test_a_required_call_is_not_forced_again_where_its_outcome_is_unknown(tmp_path: Path) -> None:
    crash = Crash(tmp_path / "runs.db", "pay b")
    async with opened([PAY, "It is 3."], crash.path) as (ctx, _):
        agent = desk(crash)
        await agent.run(await agent.trunk(ctx), QUESTION, required=["pay"])
    second = Crash(crash.crashed)
    async with opened(["Nobody knows."], crash.crashed) as (ctx, journal):
        run = await (await only_left(journal, ctx)).resume(desk(second))
    assert (run.output, [record.status for record in run.calls]) == ("Nobody knows.", ["unknown"])
    assert second.ran == []


async def test_tracked_branches_come_back(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    crash = Crash(path)
    async with opened(["One.", "Two.", "Three."], path) as (ctx, journal):
        agent = desk(crash)
        branch = await agent.trunk(ctx)
        await journal.track(branch, "anna")
        await agent.run(branch, "First?")
        other = await branch.fork()
        await agent.run(other, "Second?")
        await branch.adopt(other)
        await agent.run(branch, "Third?")
        wanted, row = branch.tokens, (await branch.logits()).tolist()
        messages = branch.messages
    async with opened(["Four."], path) as (ctx, journal):
        with pytest.raises(kv.JournalError, match="there are: 'anna'"):
            await journal.branch(ctx, "bert")
        branch = await journal.branch(ctx, "anna")
        assert branch.tokens == wanted
        assert branch.messages == messages
        assert (await branch.logits()).tolist() == row
        await desk(crash).run(branch, "Fourth?")
        wanted = branch.tokens
    async with opened([], path) as (ctx, journal):
        assert (await journal.branch(ctx, "anna")).tokens == wanted


async def test_saved_cells_spare_forwards(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with opened(["One.", "Two."], path) as (ctx, journal):
        agent = desk(Crash(path))
        branch = await agent.trunk(ctx)
        await journal.track(branch, "anna")
        await agent.run(branch, "word " * 300)
        await branch.save(tmp_path / "anna.kv")
        await agent.run(branch, "Second?")
        wanted, row = branch.tokens, (await branch.logits()).tolist()
    computed = []
    for _ in range(2):
        async with opened([], path) as (ctx, journal):
            branch = await journal.branch(ctx, "anna")
            assert branch.tokens == wanted
            assert (await branch.logits()).tolist() == row
            computed.append(sum(step.prefill_rows for step in ctx.steps))
        (tmp_path / "anna.kv").unlink(missing_ok=True)
    assert computed[0] < 60 < 300 < computed[1]


async def test_dropped_runs_take_their_states_along(tmp_path: Path) -> None:
    crash, _ = await crashed(tmp_path, "pay b")
    async with opened(["Yes."], crash.crashed) as (ctx, journal):
        left = await only_left(journal, ctx)
        await left.drop()
        assert await left_by(journal, ctx) == []
        assert await journal.runs() == []
        count = await journal.write(ctx._core, lambda db: db.execute("SELECT count(*) FROM messages").fetchone())
        states = await journal.write(ctx._core, lambda db: db.execute("SELECT count(*) FROM states").fetchone())
        assert (count, states) == ((0,), (1,))
        with pytest.raises(kv.JournalError, match="no run"):
            await left.drop()
        with pytest.raises(kv.JournalError, match="left unfinished any more"):
            await left.resume(desk(crash))
        agent = desk(crash)
        assert (await agent.run(await agent.trunk(ctx), QUESTION)).text == "Yes."


@pytest.mark.parametrize("name", ["crashed.db", "../LINK/crashed.db"])
async def test_another_journal_of_the_same_file_goes_by_the_one_that_is_open(tmp_path: Path, name: str) -> None:
    crash, _ = await crashed(tmp_path, "pay b")
    tmp_path.with_name("LINK").symlink_to(tmp_path)
    other = kv.Journal(tmp_path / name)
    try:
        async with opened(["It is 3."], crash.crashed) as (ctx, journal):
            with pytest.raises(kv.JournalError, match="pass that one as journal="):
                async with opened([], other):
                    pass
            (left,) = await left_by(other, ctx)
            await left.resume(desk(crash))
            assert [info.status for info in await other.runs()] == ["finished"]
            await other.track(await desk(crash).trunk(ctx), "desk")
            assert (await other.branch(ctx, "desk")).tokens == (await journal.branch(ctx, "desk")).tokens
            await other.drop(left.id)
            assert await journal.runs() == []
        async with opened([], other):
            pass
    finally:
        tmp_path.with_name("LINK").unlink()


RESUMED: dict[str, Any] = {
    "whole": lambda left, agent, scope: left.resume(agent),
    "stream": lambda left, agent, scope: _read(left.stream(agent), scope),
}
ENDS: dict[str, Any] = {"done": None, "fails": RuntimeError, "cancelled": None, "has no such tool": kv.InvalidInput}


async def _read(stream: Any, scope: anyio.CancelScope) -> None:
    async with stream as events:
        async for _ in events:
            pass


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("how", RESUMED)
async def test_a_turn_that_goes_on_gives_its_branch_back_however_it_ends(tmp_path: Path, how: str, end: str) -> None:
    crash, _ = await crashed(tmp_path, "pay b")
    scope = anyio.CancelScope()

    async def hook(_: kv.RunContext[Any]) -> None:
        if end == "fails":
            raise RuntimeError
        if end == "cancelled":
            scope.cancel()

    async with opened(["It is 3."] if end == "done" else [], crash.crashed) as (ctx, journal):
        left = await only_left(journal, ctx)
        agent = kv.Agent("You.") if end == "has no such tool" else desk(crash, before_round=hook)
        raises = pytest.raises(ENDS[end]) if ENDS[end] else nullcontext()
        with scope, raises as failure:  # which keeps all that it came through alive
            await RESUMED[how](left, agent, scope)
        assert ctx.branches == []
        assert (failure is None) == (ENDS[end] is None)


async def test_what_cannot_be_resumed_says_so(tmp_path: Path) -> None:
    crash, _ = await crashed(tmp_path, "pay b")
    async with opened(["It is 3."], crash.crashed) as (ctx, journal):
        left, same = await only_left(journal, ctx), await only_left(journal, ctx)
        with pytest.raises(kv.InvalidInput, match="has called pay, which the agent does not have"):
            await left.resume(kv.Agent("You are Nano.", tools=[crash.tool("look")]))
        with pytest.raises(kv.InvalidInput, match="must be an Agent"):
            await left.resume("an agent")  # type: ignore[arg-type]
        with pytest.raises(kv.InvalidInput, match="approve is int 3"):
            await left.resume(desk(crash), approve=3)  # type: ignore[arg-type]
        assert ctx.branches == []
        await left.resume(desk(crash))
        with pytest.raises(kv.JournalError, match="left unfinished any more"):
            await same.resume(desk(crash))
    async with kv.testing.replies([], threads=1) as plain:
        with pytest.raises(kv.InvalidInput, match="without this journal"):
            await left_by(journal, plain)
    with pytest.raises(kv.InvalidInput, match="must be a kv"):
        async with kv.Context.open(kv.models.nano(), journal=3):  # type: ignore[arg-type]
            pass
    for bad in ({"path": 3}, {"path": "x", "sync": "often"}):
        with pytest.raises(kv.InvalidInput):
            kv.Journal(**bad)  # type: ignore[arg-type]


async def test_calls_are_spelled_as_before(tmp_path: Path) -> None:
    """A Context steers calls once it has read two messages that spell them otherwise; so does the one that goes on."""
    path = tmp_path / "runs.db"
    spelled = '```json\n{"name": "look", "arguments": {"what": "WHAT"}}\n```'
    script = [spelled.replace("WHAT", "a"), spelled.replace("WHAT", "b"), "It is 3."]
    async with opened(script, path) as (ctx, journal):
        branch = await desk(Crash(path)).trunk(ctx)
        await journal.track(branch, "anna")
        run = await desk(Crash(path)).run(branch, QUESTION)
        assert run.rescued == 2
        assert branch._handle.core.chat.format.steered
    async with opened([], path) as (ctx, journal):
        assert not ctx._core.chat.format.steered
        await journal.branch(ctx, "anna")
        assert ctx._core.chat.format.steered
