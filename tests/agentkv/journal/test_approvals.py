"""Calls that wait for a person: answered from anywhere, and left until they are."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

import agentkv as kv
from tests.agentkv.conftest import anyio_backend  # noqa: F401 - a fixture

from .crashes import QUESTION, Crash, call, left_by, only_left, opened

pytestmark = pytest.mark.anyio

BOSS, OTHER = call("boss", what="b"), call("boss", what="c")
SCRIPT = [[call("pay", what="a"), BOSS, call("look", what="d")], "It is 3."]
NO = "it was not approved"


def leave(asked: kv.events.ApprovalAsked) -> None:
    asked.leave()


def desk(crash: Crash, **options: Any) -> kv.Agent[None, str]:
    tools = [crash.tool("pay"), crash.tool("look", idempotent=True), crash.tool("boss", approve=True)]
    return kv.Agent("You are Nano.", tools=tools, **options)


async def left_turn(path: Path, script: Any = SCRIPT, **options: Any) -> tuple[str, ...]:
    """Leaves a turn to its approvals; returns their keys."""
    async with opened(script[:1], path) as (ctx, journal):
        agent = desk(Crash(path))
        branch = await agent.trunk(ctx)
        await journal.track(branch, "desk")
        with pytest.raises(kv.ApprovalPending) as pending:
            await agent.run(branch, QUESTION, approve=leave, **options)
    return pending.value.keys


async def resumed(path: Path, approve: Any = None, script: Any = SCRIPT[1:]) -> tuple[kv.Run[str], list[str]]:
    crash = Crash(path)
    async with opened(script, path) as (ctx, journal):
        run = await (await only_left(journal, ctx)).resume(desk(crash), approve=approve)
    return run, [what for what, _ in crash.ran]


# Turns that are left.


async def run_whole(agent: kv.Agent[None, str], branch: kv.Branch, approve: Any, **options: Any) -> None:
    await agent.run(branch, QUESTION, approve=approve, **options)


async def run_stream(agent: kv.Agent[None, str], branch: kv.Branch, approve: Any, **options: Any) -> None:
    async with agent.stream(branch, QUESTION, **options) as events:
        async for event in events:
            if isinstance(event, kv.events.ApprovalAsked):
                approve(event)


async def run_task(agent: kv.Agent[None, str], branch: kv.Branch, approve: Any, **options: Any) -> None:
    await agent.start(branch, QUESTION, approve=approve, **options)


@pytest.mark.parametrize("way", [run_whole, run_stream, run_task])
@pytest.mark.parametrize("keep", [False, True])
async def test_a_turn_is_left_and_goes_on_once_it_is_answered(tmp_path: Path, way: Any, keep: bool) -> None:
    """The calls that need nobody run first, once; what is left is whole, and so is the branch."""
    path = tmp_path / "runs.db"
    crash = Crash(path)
    async with opened(SCRIPT[:1], path) as (ctx, journal):
        agent = desk(crash)
        branch = await agent.trunk(ctx)
        await journal.track(branch, "desk")
        before = branch.tokens
        with pytest.raises(kv.ApprovalPending, match=r"Journal\.answer") as pending:
            await way(agent, branch, leave, keep_partial=keep)
        assert branch.tokens == before
        assert pending.value.run is not None
        assert [record.name for record in pending.value.run.calls] == ["pay", "look"]
        left = await only_left(journal, ctx)
        (waits,) = await journal.approvals()
        assert (waits.key,) == pending.value.keys
        assert (waits.run, waits.branch, waits.call.name) == (left.id, "desk", "boss")
        assert waits.call.arguments == {"what": "b"}
        assert waits.since >= left.began
        with pytest.raises(kv.ApprovalPending):  # nobody has answered: it asks again
            await left.resume(agent, approve=leave)
        assert [again.key for again in await journal.approvals()] == [waits.key]
        assert (await journal.approvals())[0].since == waits.since
    assert sorted(what for what, _ in crash.ran) == ["look d", "pay a"]
    await kv.Journal(path).answer(waits, True)
    assert await kv.Journal(path).approvals() == []
    run, ran = await resumed(path)
    assert ran == ["boss b"]
    assert run.text == "It is 3."
    assert [record.status for record in run.calls] == ["done"] * 3


async def test_a_turn_waits_for_all_that_it_asks(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    keys = await left_turn(path, [[BOSS, OTHER], "Done."])
    assert len(keys) == 2
    journal = kv.Journal(path)
    assert {waits.key for waits in await journal.approvals()} == {*keys}
    await journal.answer(keys[1], False, "not today")
    with pytest.raises(kv.ApprovalPending) as pending:
        await resumed(path, leave, [])
    assert pending.value.keys == keys[:1]
    await journal.answer(keys[0], True)
    run, ran = await resumed(path, leave, ["Done."])
    assert ran == ["boss b"]
    assert [(record.status, record.error) for record in run.calls] == [("done", None), ("denied", "denied: not today")]


@pytest.mark.parametrize("fork", [False, True])
async def test_the_call_of_a_sub_agent_leaves_its_manager(tmp_path: Path, fork: bool) -> None:
    path = tmp_path / "runs.db"
    ran: list[str] = []

    def manager() -> kv.Agent[None, str]:
        crash = Crash(path)
        ran.clear()
        crash.ran = ran  # type: ignore[assignment]
        helper = kv.Agent("You help.", tools=[crash.tool("boss", approve=True)])
        return kv.Agent("You are Nano.", tools=[crash.tool("pay"), helper.as_tool("helper", "to help", fork=fork)])

    first = [[call("pay", what="a"), call("helper", task="do it")], BOSS]
    async with opened(first, path) as (ctx, journal):
        agent = manager()
        with pytest.raises(kv.ApprovalPending) as pending:
            await agent.run(await agent.trunk(ctx), QUESTION, approve=leave)
        assert [what for what, _ in ran] == ["pay a"]
        (waits,) = await journal.approvals()
        left = await only_left(journal, ctx)
        assert (waits.key,) == pending.value.keys
        assert waits.key == f"{left.id}-1-0"
        assert waits.run == left.id
    await kv.Journal(path).answer(waits, True)
    async with opened(["helped", "Done."], path) as (ctx, journal):
        run = await (await only_left(journal, ctx)).resume(manager())
    assert [what for what, _ in ran] == ["boss b"]
    assert run.text == "Done."
    assert [record.status for record in run.calls] == ["done", "done"]


async def test_a_fork_of_a_turn_that_waits_has_no_approval_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    crash, asked = Crash(path), anyio.Event()

    def approve(event: kv.events.ApprovalAsked) -> None:
        event.later()
        asked.set()

    async with opened([BOSS, "Done.", "Done."], path) as (ctx, journal):
        agent = desk(crash)
        run = agent.start(await agent.trunk(ctx), QUESTION, approve=approve)
        await asked.wait()
        (fork,) = await run.fork(1)
        (waits,) = await journal.approvals()
        await journal.answer(waits, True)
        assert [(await each).text for each in (run, fork)] == ["Done.", "Done."]
    assert [what for what, _ in crash.ran] == ["boss b"]


async def test_without_a_journal_nothing_is_left(tmp_path: Path) -> None:
    """The reader is told, and may answer all the same."""
    crash = Crash(tmp_path / "runs.db")
    async with kv.testing.replies([BOSS, "Done.", BOSS], threads=1) as ctx:
        agent = desk(crash)
        branch = await agent.trunk(ctx)
        async with agent.stream(branch, QUESTION) as events:
            async for event in events:
                if isinstance(event, kv.events.ApprovalAsked):
                    with pytest.raises(kv.InvalidInput, match="journal="):
                        event.leave()
                    assert event.approve()
                    assert not event.deny("too late")
        assert [record.status for record in events.run.calls] == ["done"]
        before = branch.tokens
        with pytest.raises(kv.InvalidInput, match="journal="):
            await agent.run(branch, QUESTION, approve=leave)
        assert branch.tokens == before


@pytest.mark.parametrize(
    ("hook", "status"), [("after_call", "failed"), ("before_round", "failed"), ("tool", "finished")]
)
async def test_what_another_turn_waits_for_is_an_error_of_this_one(tmp_path: Path, hook: str, status: str) -> None:
    """A turn that a hook, or a tool, runs by itself is one of its own: this one is not left with it."""
    path = tmp_path / "runs.db"
    inner: list[kv.Branch] = []

    async def ask() -> str:
        if not inner:
            inner.append(await agent.trunk(ctx))
            await boss.run(inner[0], "Inner?", approve=leave)
        return "asked"

    async with opened(
        lambda text: (
            BOSS if "Inner?" in text else "Done." if "asked" in text or "Journal.answer" in text else call("ask")
        ),
        path,
    ) as (
        ctx,
        journal,
    ):
        boss = desk(Crash(path))
        asks = kv.tool(name="ask", description="to ask")(ask if hook == "tool" else _nothing)
        agent = kv.Agent("You are Nano.", tools=[asks], **({hook: lambda *_: ask()} if hook != "tool" else {}))
        outer = await agent.trunk(ctx)
        if status == "failed":
            with pytest.raises(kv.ApprovalPending):
                await agent.run(outer, QUESTION)
        else:
            assert (await agent.run(outer, QUESTION)).calls[0].status == "failed"
        assert [info.status for info in await journal.runs()] == [status, "running"]
        assert [left.prompt for left in await left_by(journal, ctx)] == [[{"role": "user", "content": "Inner?"}]]


async def _nothing() -> str:
    return "asked"


# Answers while a turn waits.


@pytest.mark.parametrize("way", [run_whole, run_stream, run_task])
@pytest.mark.parametrize(("approved", "why", "status"), [(True, None, "done"), (False, "on Sunday", "denied")])
async def test_a_turn_that_waits_hears_of_an_answer(
    tmp_path: Path, way: Any, approved: bool, why: str | None, status: str
) -> None:
    """Whoever was asked is told that it is over."""
    path = tmp_path / "runs.db"
    crash = Crash(path)
    asked: list[kv.events.ApprovalAsked] = []
    ends: list[str] = []

    async def waits(event: kv.events.ApprovalAsked) -> None:
        asked.append(event)
        try:
            await anyio.sleep_forever()
        finally:
            ends.append("cancelled")

    def later(event: kv.events.ApprovalAsked) -> None:
        asked.append(event)
        event.later()

    async with opened([BOSS, "Done."], path) as (ctx, _):
        agent = desk(crash)
        branch = await agent.trunk(ctx)
        async with anyio.create_task_group() as group:
            group.start_soon(way, agent, branch, later if way is run_stream else waits)
            other = kv.Journal(path)
            while not asked:
                await anyio.lowlevel.checkpoint()
            await other.answer(asked[0].key, approved, why)
        assert ends == ([] if way is run_stream else ["cancelled"])
        (event,) = asked
        assert event.answered
        assert (event.approve(), event.deny("x"), event.leave()) == (False, False, False)
        assert branch.messages[-2].content == ("boss b done" if approved else '{"error": "denied: on Sunday"}')
    assert len(crash.ran) == approved


@pytest.mark.parametrize("first", ["journal", "person"])
async def test_the_first_answer_counts(
    tmp_path: Path, first: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "runs.db"
    crash, journal = Crash(path), kv.Journal(path)
    monkeypatch.setattr("agentkv.journal.answers.AnswerWatch.look", lambda *_: None)  # it hears of nothing

    async def both(event: kv.events.ApprovalAsked) -> bool:
        if first == "journal":
            await kv.Journal(path).answer(event.key, False, "no")
        return True

    async def late(context: kv.RunContext[Any], what: str) -> str:
        with pytest.raises(kv.JournalError, match="answered before: it was approved"):
            await journal.answer(context.call_key, False)
        await journal.answer(context.call_key, True)
        crash.ran.append((what, ""))
        return what

    async with opened([BOSS, "Done."], path) as (ctx, _):
        agent = kv.Agent("You.", tools=[kv.tool(name="boss", description="to boss", approve=True)(late)])
        run = await agent.run(await agent.trunk(ctx), QUESTION, approve=both)
    assert run.calls[0].status == ("denied" if first == "journal" else "done")
    assert len(crash.ran) == (first == "person")
    assert ("decided elsewhere" in caplog.text) == (first == "journal")


async def test_an_answer_that_is_there_asks_nobody(tmp_path: Path) -> None:
    """It came while the turn was taken up."""
    path = tmp_path / "runs.db"
    (key,) = await left_turn(path)
    crash = Crash(path)

    async def answers(_: kv.RunContext[Any]) -> None: ...

    def asks(event: kv.events.ApprovalAsked) -> bool:
        raise AssertionError("nobody is asked")

    async with opened(["It is 3."], path) as (ctx, journal):
        stream = (await only_left(journal, ctx)).stream(desk(crash, before_round=answers), approve=asks)
        taken_up = stream._begin

        async def begin(*given: Any) -> Any:
            turn = await taken_up(*given)
            await kv.Journal(path).answer(key, True)
            return turn

        stream._begin = begin  # type: ignore[method-assign]
        async with stream as events:
            async for _ in events:
                pass
    assert [what for what, _ in crash.ran] == ["boss b"]


# Kinds of answers, and states of an approval.

ANSWERS = [(True, None), (False, None), (False, "no"), (False, "never")]
ANSWERED, NONE = "answered before", "no approval"


def of_status(status: str) -> str:
    return f"UPDATE runs SET status = '{status}'"


@pytest.mark.parametrize(
    ("state", "refused"),  # each of the answers above: why, or None for one that counts
    [
        ("SELECT 1", [None] * 4),
        ("UPDATE calls SET denied = ''", [None, ANSWERED, ANSWERED, ANSWERED]),
        ("UPDATE calls SET denied = 'no'", ["it was denied: no", None, None, "it was denied: no"]),
        (f"UPDATE calls SET denied = '{NO}'", [ANSWERED, None, ANSWERED, ANSWERED]),
        (f"UPDATE calls SET denied = ''; {of_status('finished')}", [None, "it was approved", ANSWERED, ANSWERED]),
        (of_status("finished"), ["has finished"] * 4),
        (of_status("failed"), ["has failed"] * 4),
        (of_status("cancelled"), ["was cancelled"] * 4),
        ("UPDATE calls SET record = '{}'", ["call has ended"] * 4),
        ("UPDATE calls SET asked = NULL", [NONE] * 4),
        ("DELETE FROM runs", [NONE] * 4),
        ("UPDATE calls SET denied = x'00'", ["drop it"] * 4),
    ],
)
async def test_an_answer_to_an_approval_in_each_state(tmp_path: Path, state: str, refused: list[str | None]) -> None:
    (key,) = await left_turn(tmp_path / "runs.db", [BOSS])
    for number, ((approved, why), message) in enumerate(zip(ANSWERS, refused, strict=True)):
        path = tmp_path / f"{number}.db"
        with closing(sqlite3.connect(tmp_path / "runs.db")) as source, closing(sqlite3.connect(path)) as copy:
            source.backup(copy)
            copy.executescript(state)
        journal = kv.Journal(path)
        if message is None:
            await journal.answer(key, approved, why)
            await journal.answer(key, approved, why)  # the same again does nothing
            assert await journal.approvals() == []
            continue
        before = _dump(path)
        with pytest.raises(kv.JournalError, match=message):
            await journal.answer(key, approved, why)
        assert _dump(path) == before


def _dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [*database.iterdump()]


async def test_a_key_that_another_call_has_by_now_is_no_approval_of_it(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await left_turn(path)
    (waits,) = await kv.Journal(path).approvals()
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("UPDATE calls SET request = json_set(request, '$.arguments.what', 'all') WHERE number = 1")
    with pytest.raises(kv.JournalError, match="another call by now"):
        await kv.Journal(path).answer(waits, True)
    assert [each.call.arguments for each in await kv.Journal(path).approvals()] == [{"what": "all"}]


async def _raises(answer: Callable[[], Awaitable[Any]], kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match) as refused:
        await answer()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "key",
    ["", "-", "--", "x", "-1", "{run}", "{run}-", "{run}-x", "{run}--1", "{run}-99", "{run}-1-1", "{run}-\u0661",
     "a\0b-1", "{run}-" + "9" * 5000, "'; DROP TABLE calls; --1", "\ud800-1", "%-1", "{run}-1 ", "{run}-01"],
    ids=lambda key: ascii(key[:40]),
)  # fmt: skip
async def test_keys_that_are_none(tmp_path: Path, key: str) -> None:
    path = tmp_path / "runs.db"
    (there,) = await left_turn(path)
    before = _dump(path)
    await _raises(
        lambda: kv.Journal(path).answer(key.replace("{run}", there.rpartition("-")[0]), True), kv.JournalError, NONE
    )
    assert _dump(path) == before


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ((None, True), "approval is NoneType|approval is None"),
        ((b"x-1", True), "approval is bytes"),
        (("x-1", "yes"), "approved"),
        (("x-1", None), "approved"),
        (("x-1", True, "because"), "leave it out"),
        (("x-1", False, 5), "why is int 5"),
        (("x-1", False, "long " * 9999), "fewer words"),
    ],
)
async def test_invalid_arguments(tmp_path: Path, given: Any, match: str) -> None:
    await _raises(lambda: kv.Journal(tmp_path / "runs.db").answer(*given), kv.InvalidInput, match)
    assert not (tmp_path / "runs.db").exists()


@pytest.mark.parametrize("why", ["", "  ", "\ud800"])
async def test_a_reason_is_never_an_approval(tmp_path: Path, why: str) -> None:
    path = tmp_path / "runs.db"
    (key,) = await left_turn(path)
    await kv.Journal(path).answer(key, False, why)
    run, ran = await resumed(path)
    assert ran == []
    assert "denied" in [record.status for record in run.calls]


async def test_a_long_reason_is_cut_for_the_model_and_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    (key,) = await left_turn(path, [BOSS])
    await kv.Journal(path).answer(key, False, "never\n" * 2000)
    with pytest.raises(kv.JournalError, match=r"it was denied: never never .*\.\.\.$") as refused:
        await kv.Journal(path).answer(key, True)
    assert len(str(refused.value)) < 400
    crash = Crash(path)
    async with opened(["Done."], path) as (ctx, journal):
        agent = kv.Agent("You are Nano.", tools=[crash.tool("boss", approve=True, max_result_tokens=20)])
        run = await (await only_left(journal, ctx)).resume(agent)
        assert len(ctx.tokenizer.encode(run.calls[0].error or "")) <= 20
    assert (run.calls[0].status, crash.ran) == ("denied", [])


# Calls in order.


async def test_calls_in_order_wait_for_one_that_a_person_decides_on(tmp_path: Path) -> None:
    path, names = tmp_path / "runs.db", ("one", "two", "three", "four")
    script = [[*map(call, names), call("free")], "Done."]
    ran: list[str] = []

    def told(name: str, **options: bool) -> kv.Tool[Any, ..., Any]:
        return kv.tool(name=name, description="Does something.", **options)(lambda: ran.append(name))  # type: ignore[call-overload,no-any-return]

    tools = [told(name, in_order=True, approve=name == "two") for name in names]
    agent = kv.Agent("You are Nano.", tools=[*tools, told("free")])
    async with opened(script[:1], path) as (ctx, _):
        with pytest.raises(kv.ApprovalPending) as pending:
            await agent.run(await agent.trunk(ctx), QUESTION, approve=leave)
    assert (len(pending.value.keys), sorted(ran)) == (1, ["free", "one"])
    async with opened(script[1:], path) as (ctx, journal):
        await (await only_left(journal, ctx)).resume(agent, approve=lambda asked: True)
    assert [name for name in ran if name != "free"] == list(names)
