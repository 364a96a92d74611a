"""Answers that other processes write while a turn waits, or after its process was killed; many at once."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest

import agentkv as kv
from agentkv.journal.answers import AnswerWatch
from tests.agentkv.conftest import anyio_backend  # noqa: F401 - a fixture
from tests.rows import in_turn
from tests.waiting import PATIENCE

from .crashes import QUESTION, Crash, call, opened
from .test_approvals import BOSS, desk, left_turn, resumed

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[3]
ANSWER = [sys.executable, "-m", "agentkv", "runs", "answer"]


@contextmanager
def process(folder: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    """A process that takes a turn, or goes on with it; it says the key of what it asks."""
    command = [sys.executable, "-m", "tests.agentkv.journal.asking_process", str(folder), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as running:
        try:
            yield running
        finally:
            running.kill()


def _line(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


def _ran(folder: Path) -> list[str]:
    return (folder / "ledger").read_text().split() if (folder / "ledger").exists() else []


@pytest.mark.parametrize(
    ("ends", "answer"), in_turn(["killed", "left", "waits"], [("--yes", "done", 1), ("--no", "denied", 0)])
)
def test_one_process_asks_and_another_answers(tmp_path: Path, ends: str, answer: tuple[str, str, int]) -> None:
    """The tool runs once, in the process that goes on, whatever became of the one that asked."""
    option, status, times = answer
    path = tmp_path / "runs.db"
    with process(tmp_path, "leave" if ends == "left" else "wait") as first:
        key = _line(first)
        if ends == "killed":
            first.send_signal(signal.SIGKILL)
        if ends != "waits":
            first.wait(PATIENCE)
        assert (first.returncode, _ran(tmp_path)) == ({"killed": -signal.SIGKILL, "left": 0, "waits": None}[ends], [])
        answered = subprocess.run([*ANSWER, path, key[:8] + key[32:], option], capture_output=True, text=True)
        assert answered.returncode == 0, answered.stderr
        if ends == "waits":
            assert _line(first) == status
            assert first.wait(PATIENCE) == 0
        else:
            with process(tmp_path, "resume") as third:
                assert _line(third) == status
                assert third.wait(PATIENCE) == 0
    assert _ran(tmp_path) == ["Tolvik"] * times


async def test_of_many_answers_at_once_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    (key,) = await left_turn(path, [BOSS])
    seen: Counter[str] = Counter()

    async def answer(number: int) -> None:
        try:
            await kv.Journal(path).answer(key, number % 2 == 0, None if number % 2 == 0 else f"no {number}")
            seen["counts" if number % 2 else "yes"] += 1
        except kv.JournalError as error:
            assert "answered before" in str(error)  # noqa: PT017
            seen["refused"] += 1

    async with anyio.create_task_group() as group:
        for number in range(16):
            group.start_soon(answer, number)
    assert (seen["yes"], seen["counts"], seen["refused"]) in [(8, 0, 8), (0, 1, 15)]
    _, ran = await resumed(path, script=["Done."])
    assert ran == (["boss b"] if seen["yes"] else [])


async def test_many_turns_hear_of_their_own_answers(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    crash = Crash(path)

    def reply(text: str) -> object:
        number = text[text.rindex("Question ") + 9 :][:3]
        return f"Done {number}" if f"boss {number} done" in text or "denied" in text else call("boss", what=number)

    async with opened(reply, path) as (ctx, _):  # type: ignore[arg-type]
        agent = desk(crash)
        branches = await (await agent.trunk(ctx)).fork(12)
        turns = [
            agent.start(each, f"Question {100 + number}?", approve=lambda asked: asked.later())
            for number, each in enumerate(branches)
        ]
        other = kv.Journal(path)
        with anyio.fail_after(PATIENCE):
            while len(waiting := await other.approvals()) < len(turns):
                pass
            for each in reversed(waiting):
                await other.answer(each, each.call.arguments["what"] != "105")
            statuses = [(await turn).calls[0].status for turn in turns]
    assert statuses == ["denied" if number == 5 else "done" for number in range(12)]
    assert sorted(what for what, _ in crash.ran) == [f"boss {100 + n}" for n in range(12) if n != 5]


async def test_nothing_is_polled_where_nothing_waits(tmp_path: Path) -> None:
    watch = AnswerWatch()
    assert watch.pause is None
    watch.add("run", 0, lambda _: None)
    assert watch.pause is not None
    watch.remove("run", 0)
    watch.remove("run", 0)
    assert watch.pause is None
    path = tmp_path / "runs.db"
    async with opened([BOSS, "Done."], path) as (ctx, journal):
        agent = desk(Crash(path))
        await agent.run(await agent.trunk(ctx), QUESTION, approve=lambda _: True)
        assert journal._answers.pause is None


async def test_a_journal_that_cannot_be_read_is_told_of_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    watch, heard = AnswerWatch(), list[object]()
    watch.add("run", 0, heard.append)
    with closing(sqlite3.connect(tmp_path / "x.db")) as database:
        for _ in range(3):
            watch.look(database)  # it has no tables
        assert caplog.text.count("cannot be read") == 1
        database.execute("CREATE TABLE calls (run, number, denied)")
        database.execute("INSERT INTO calls VALUES ('run', 0, 5)")
        watch.look(database)
        assert heard == []
        database.execute("UPDATE calls SET denied = 'no'")
        watch.look(database)
        assert [str(each) for each in heard] == ["Decision(denied='no')"]


async def test_an_answer_on_a_full_disk_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.db"
    (key,) = await left_turn(path, [BOSS])
    real = sqlite3.connect

    class Full(sqlite3.Connection):
        def execute(self, statement: str, *given: object) -> sqlite3.Cursor:
            cursor = super().execute(statement, *given)  # type: ignore[arg-type]
            if statement.startswith("UPDATE calls"):
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorname = "SQLITE_FULL"
                raise error
            return cursor

    monkeypatch.setattr(sqlite3, "connect", lambda *given, **options: real(*given, factory=Full, **options))
    with pytest.raises(kv.JournalError, match="free some space"):
        await kv.Journal(path).answer(key, True)
    monkeypatch.undo()
    assert [waits.key for waits in await kv.Journal(path).approvals()] == [key]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_journal_of_somebody_else_is_not_answered(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    (key,) = await left_turn(path, [BOSS])
    path.chmod(stat.S_IRUSR)
    with pytest.raises(kv.JournalError, match="can be written"):
        await kv.Journal(path).answer(key, True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no journal"),
        (Path.mkdir, "is no file"),
        (lambda path: path.write_bytes(b"letter" * 999), "no journal"),
        (lambda path: sqlite3.connect(path).execute("CREATE TABLE bills (id)").connection.close(), "another program"),
    ],
)
async def test_what_is_no_journal_is_left_as_it_is(tmp_path: Path, make: object, message: str) -> None:
    path = tmp_path / "runs.db"
    make(path)  # type: ignore[operator]
    before = path.read_bytes() if path.is_file() else None
    for verb in (kv.Journal(path).approvals, lambda: kv.Journal(path).answer("x-1", True)):
        with pytest.raises(kv.JournalError, match=message):
            await verb()
    assert (path.read_bytes() if path.is_file() else None) == before


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE calls SET request = '{'[' * 100_000}'",
        "UPDATE calls SET request = x'ff'",
        "UPDATE calls SET asked = 'x'",
        "UPDATE runs SET parent = id",
        "UPDATE calls SET request = '{}'",
    ],
    ids=lambda statement: statement[:50],
)
async def test_damaged_entries_are_named(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "runs.db"
    (key,) = await left_turn(path, [BOSS])
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(statement)
    with anyio.fail_after(PATIENCE), pytest.raises(kv.JournalError, match="drop it") as refused:
        await kv.Journal(path).approvals()
    assert key.rpartition("-")[0] in str(refused.value)
    assert "\n" not in str(refused.value)
