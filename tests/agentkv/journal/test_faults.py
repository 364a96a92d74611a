"""Files that are no journals, disks that are full, other processes, and tasks that are cancelled."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import anyio
import pytest

import agentkv as kv
from agentkv.journal.reading import remove_runs
from agentkv.journal.schema import VERSION, open_database
from agentkv.journal.writer import JournalWriter
from tests.agentkv.conftest import anyio_backend  # noqa: F401 - a fixture
from tests.waiting import NEVER, SOON

from .crashes import QUESTION, Crash, call, left_by, only_left, opened
from .test_journal import crashed, desk

pytestmark = pytest.mark.anyio


def _garbage(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(9000))


def _text(path: Path) -> None:
    path.write_text("this is a letter\n" * 300)


def _of_others(path: Path) -> None:
    sqlite3.connect(path).execute("CREATE TABLE bills (id)").connection.close()


def _newer(path: Path) -> None:
    database = open_database(path, "normal")
    database.execute(f"PRAGMA user_version = {VERSION + 1}")
    database.close()


def _no_folder(path: Path) -> None:
    path.parent.rmdir()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_garbage, "no journal"),
        (_text, "no journal"),
        (_of_others, "another program"),
        (_newer, "newer agentkv"),
        (Path.mkdir, "cannot be opened|give a path"),
        (_no_folder, "cannot be"),
    ],
)
async def test_what_is_no_journal_is_left_as_it_is(tmp_path: Path, make: Callable[[Path], Any], message: str) -> None:
    path = tmp_path / "inner" / "runs.db"
    path.parent.mkdir()
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(kv.JournalError, match=message):
        async with opened([], path):
            pass
    assert (path.read_bytes() if path.is_file() else None) == before


async def test_a_journal_that_was_cut_is_an_earlier_one_or_an_error(tmp_path: Path) -> None:
    await crashed(tmp_path, "pay b")
    draw, seen = random.Random(3), set[str]()
    sizes = {end: (tmp_path / f"crashed.db{end}").stat().st_size for end in ("", "-wal")}
    for number in range(24):
        end = "-wal" if number % 3 else ""
        cut = tmp_path / f"cut{number}.db"
        for part in sizes:
            shutil.copy(tmp_path / f"crashed.db{part}", f"{cut}{part}")
        os.truncate(f"{cut}{end}", draw.randrange(sizes[end]))
        try:
            async with opened([], cut) as (ctx, journal):
                found = await left_by(journal, ctx)
                assert len(found) <= 1
                seen.add(f"{len(found)} runs")
        except kv.JournalError:
            seen.add("an error")
    assert seen >= {"0 runs", "1 runs"}


async def test_a_full_disk_ends_the_turn_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    crash = Crash(path)

    async def limit(ctx: kv.Context, journal: kv.Journal, pages: int) -> None:
        await journal.write(ctx._core, lambda database: database.execute(f"PRAGMA max_page_count = {pages}").fetchone())

    big = {"before_round": None, "max_rounds": 40, "max_tokens": 100_000}
    script = [call("pay", what=f"{number} {'word ' * 60}") for number in range(30)]
    async with opened(lambda _: script.pop(0) if script else "Done.", path) as (ctx, journal):
        agent = desk(crash, **big)
        branch = await agent.trunk(ctx)
        await journal.track(branch, "anna")
        (pages,) = await journal.write(ctx._core, lambda database: database.execute("PRAGMA page_count").fetchone())
        await limit(ctx, journal, pages + 4)
        before = branch.tokens
        with pytest.raises(kv.JournalError, match="free some space") as full:
            await agent.run(branch, QUESTION)
        assert branch.tokens == before
        assert full.value.run is not None
        ran = len(crash.ran)
        assert 0 < ran <= len(full.value.run.calls)
        with pytest.raises(kv.JournalError, match="free some space"):
            await agent.run(branch, QUESTION)
        assert len(crash.ran) == ran
        await limit(ctx, journal, pages + 4000)
        script.clear()
        assert (await agent.run(branch, QUESTION)).text == "Done."
        *failed, last = [info.status for info in await journal.runs()]
        assert {*failed} == {"failed"}
        assert last == "finished"
        tokens = branch.tokens
    async with opened([], path) as (ctx, journal):
        assert await left_by(journal, ctx) == []
        assert (await journal.branch(ctx, "anna")).tokens == tokens


def _replaced(path: Path) -> None:
    shutil.copy(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)


GONE: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "replaced": _replaced,
    "its folder removed": lambda path: shutil.rmtree(path.parent),
}


@pytest.mark.parametrize("how", GONE)
async def test_a_journal_that_is_gone_is_told_before_anything_is_lost(tmp_path: Path, how: str) -> None:
    path, crash = tmp_path / "inner" / "runs.db", Crash(tmp_path / "unused.db")
    path.parent.mkdir()
    script = [call("pay", what="it"), "Done."]
    async with opened(lambda _: script.pop(0), path) as (ctx, journal):
        agent = desk(crash, before_round=None)
        branch = await agent.trunk(ctx)
        await journal.track(branch, "anna")
        kept = path.with_name("kept")
        os.link(path, kept)
        before = branch.tokens
        GONE[how](path)
        with pytest.raises(kv.JournalError, match="removed or replaced"):
            await agent.run(branch, QUESTION)
        assert branch.tokens == before
        assert crash.ran == []
        if kept.exists():
            os.replace(kept, path)
            assert (await agent.run(branch, QUESTION)).text == "Done."


async def test_another_process_has_it(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    holds = (
        "import sys; from filelock import FileLock\n"
        "with FileLock(sys.argv[1]): print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(  # noqa: ASYNC220 - it answers at once
        [sys.executable, "-c", holds, f"{path}.lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    try:
        with pytest.raises(kv.JournalError, match="another process"):
            async with opened([], path):
                pass
    finally:
        other.communicate()
    async with opened([], path) as (one, journal), opened([], journal) as (two, same):
        assert journal is same
        assert await left_by(journal, one) == await left_by(journal, two) == []


async def test_a_context_of_another_thread_opens_it_while_the_last_one_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, close, joined = kv.Journal(tmp_path / "runs.db"), JournalWriter.close, list[Future[None]]()

    def closing(writer: JournalWriter) -> None:
        monkeypatch.undo()
        joined.append(threads.submit(journal.attach, other._core))
        wait(joined, SOON)  # it would be in there, if nothing kept it
        close(writer)

    with ThreadPoolExecutor(1) as threads:
        async with kv.testing.replies([], threads=1) as other:
            async with opened([], journal):
                monkeypatch.setattr(JournalWriter, "close", closing)
            joined[0].result(NEVER)
            assert await journal.runs() == []
            journal.detach(other._core)


async def test_cancelled_turns_go_on_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    ran: list[str] = []

    async def forever(what: str) -> str:
        ran.append(what)
        scope.cancel()
        await anyio.lowlevel.checkpoint()
        return what

    waits = kv.tool(name="pay", description="to pay", idempotent=True, early=False)(forever)
    agent = kv.Agent("You are Nano.", tools=[waits])
    async with opened([call("pay", what="a"), "Done.", "Yes."], path) as (ctx, journal):
        branch = await agent.trunk(ctx)
        before = branch.tokens
        with anyio.CancelScope() as scope:
            await agent.run(branch, QUESTION)
        assert branch.tokens == before
        assert await left_by(journal, ctx) == []
        assert [info.status for info in await journal.runs()] == ["cancelled"]
        (left,) = [each async for each in journal.unfinished(ctx, cancelled=True)]
        assert (await left.resume(agent)).text == "Done."
        assert ran == ["a", "a"]
        assert [info.status for info in await journal.runs()] == ["finished"]
        assert (await agent.run(branch, QUESTION)).text == "Yes."
        assert [each async for each in journal.unfinished(ctx, cancelled=True)] == []


async def test_a_context_that_ends_under_a_turn_leaves_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    begun = anyio.Event()

    async def forever(what: str) -> str:
        begun.set()
        await anyio.sleep_forever()
        return ""

    agent = kv.Agent("You are Nano.", tools=[kv.tool(name="pay", description="to pay")(forever)])

    async def turn(branch: kv.Branch) -> None:
        with pytest.raises((kv.AgentKVError, anyio.get_cancelled_exc_class())):
            await agent.run(branch, QUESTION)

    async with anyio.create_task_group() as group:
        async with opened([call("pay", what="a")], path) as (ctx, _):
            group.start_soon(turn, await agent.trunk(ctx))
            await begun.wait()
        group.cancel_scope.cancel()
    async with opened([], path) as (ctx, journal):
        assert (await only_left(journal, ctx)).prompt == [{"role": "user", "content": QUESTION}]


async def test_many_turns_at_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    crash = Crash(path)

    def reply(text: str) -> Any:
        asked = text.rindex("Question ")
        number = text[asked + 9 : asked + 12]
        return f"Answer {number}." if f"pay {number} done" in text else call("pay", what=number)

    async with opened(reply, path) as (ctx, journal):
        agent = kv.Agent("You are Nano.", tools=[crash.tool("pay")])
        trunk = await agent.trunk(ctx)
        branches = await trunk.fork(24)
        runs = await kv.gather(*(agent.run(each, f"Question {100 + n}?") for n, each in enumerate(branches)))
        assert [run.text for run in runs] == [f"Answer {100 + n}." for n in range(24)]
        assert {info.status for info in await journal.runs()} == {"finished"}
    assert len({key for _, key in crash.ran}) == 24


STATE, REST = "UPDATE messages SET turn_state = ", '{"rng_stream": 1, "forks": 1, "marks": {}, "forgotten": []}'
START = "UPDATE runs SET start = json_set(start, "


@pytest.mark.parametrize(
    "statement",
    [
        f"{STATE}'{{}}'",
        f"{STATE}json_set(turn_state, '$.messages', json('[]'))",
        f"{STATE}'{'[' * 100_000}'",
        "UPDATE conversations SET entries = 'x'",
        "UPDATE conversations SET previous = id",
        "UPDATE conversations SET previous = (SELECT max(id) FROM conversations)",
        "DELETE FROM states",
        "UPDATE states SET tokens = x'ffffff7f'",
        "UPDATE states SET base = id",
        "UPDATE states SET base = (SELECT max(id) FROM states)",
        "UPDATE states SET base = 'x'",
        f"UPDATE states SET rest = '{REST.replace('1', '-1', 1)}'",
        f"UPDATE states SET rest = '{REST.replace('1', '1e400', 1)}'",
        f"UPDATE states SET rest = '{REST.replace('{}', '5')}'",
        f"UPDATE states SET rest = '{REST.replace('[]', '[[1, 2, 3, 4]]')}'",
        f"{START}'$.tools', 5)",
        f"{START}'$.prompt', 7)",
        f"{START}'$.steering', 'x')",
        f"{START}'$.steering.later', 1)",
        f"{START}'$.steering.required', 'look')",
        "UPDATE runs SET began = 'x'",
        "UPDATE runs SET answer = x'ff'",
        f"UPDATE calls SET record = '{'[' * 100_000}'",
    ],
    ids=lambda statement: statement[:80],
)
async def test_entries_say_what_is_wrong_with_them(tmp_path: Path, statement: str) -> None:
    """An error at once, in one line; the turn can be dropped, and the journal goes on."""
    crash, _ = await crashed(tmp_path, "pay b")
    async with opened(["Yes."], crash.crashed) as (ctx, journal):
        (run,) = await journal.write(ctx._core, lambda database: database.execute("SELECT id FROM runs").fetchone())
        await journal.write(ctx._core, lambda database: database.execute(statement))
        with anyio.fail_after(NEVER), pytest.raises(kv.JournalError) as refused:
            await (await only_left(journal, ctx)).resume(desk(crash))
        assert "\n" not in str(refused.value)
        read_it = f"run {run}" in str(refused.value)
        assert read_it or not statement.startswith(("UPDATE runs", "UPDATE calls"))
        await journal.drop(run)
        agent = desk(crash)
        assert (await agent.run(await agent.trunk(ctx), QUESTION)).text == "Yes."
    if read_it:
        with pytest.raises(kv.JournalError, match="no run"):
            remove_runs(crash.crashed, [run])


async def test_a_branch_in_a_turn_is_not_tracked(tmp_path: Path) -> None:
    """Its turn would not be whole in what came back."""
    crash = Crash(tmp_path / "runs.db")
    seen: list[str] = []

    async def track(context: kv.RunContext[Any]) -> None:
        with pytest.raises(kv.BranchBusy) as busy:
            await journal.track(context.branch, "anna")
        seen.append(str(busy.value))

    async with opened(["Done."], crash.path) as (ctx, journal):
        agent = desk(crash, before_round=track)
        branch = await agent.trunk(ctx)
        await agent.run(branch, QUESTION)
        await journal.track(branch, "anna")
    assert len(seen) == 1
