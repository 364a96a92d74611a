"""`agentkv runs`: what a journal has is shown without disturbing it, and what was left goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pexpect
import pytest
from typer.testing import CliRunner, Result

import agentkv as kv
from agentkv.cli import app
from agentkv.journal.reading import run_called, short_ids
from tests.agentkv.terminal.chats import tool_file
from tests.waiting import NEVER, PATIENCE

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, "-m", "agentkv", "runs"]
ANSWER = "It is 3 degrees and sunny in Tolvik."
BODY = f"import os; time.sleep({NEVER} if 'WAITS' in os.environ else 0); return {{'temp': 3, 'sky': 'sunny'}}"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["runs", *map(str, arguments)], env={"COLUMNS": "200"})


def told(*arguments: object) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def refused(*arguments: object) -> str:
    """The one line of a command that cannot go on."""
    done = run(*arguments)
    assert (done.exit_code, done.output.count("\n")) == (1, 1), done.output
    assert done.output.startswith("error: ")
    return done.output


@pytest.fixture(scope="module")
def left_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("left")
    tools = tool_file(folder, BODY, "(approve=True)")
    command = [sys.executable, "-m", "tests.agentkv.cli.left_turn", str(folder / "runs.db"), tools]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    return folder


@pytest.fixture
def left(left_once: Path, tmp_path: Path) -> Path:
    """A journal with a turn that finished and one that was left; beside it `tools.py`."""
    shutil.copytree(left_once, tmp_path / "copy")
    return tmp_path / "copy" / "runs.db"


def of_the_left_one(journal: Path) -> list[str]:
    (info,) = [each for each in told("list", journal) if each["status"] == "unfinished"]
    tools = str(journal.with_name("tools.py"))
    model = ["--model", str(kv.models.nano()), "--tools", tools, "--threads", "1"]
    return ["resume", str(journal), info["id"][:8], *model]


def test_what_is_in_it_is_shown(left: Path) -> None:
    before = left.read_bytes()
    lines = run("list", left).output.splitlines()
    assert [line.split()[1:3] for line in lines[1:]] == [["finished", "desk"], ["unfinished", "desk"]]
    assert "What is the weather in Tolvik?" in lines[2]
    assert lines[2].split()[-2:] == ["1", "1"]
    shown = run("show", left, lines[2].split()[0]).output
    for part in ("status    unfinished", "branch    desk", "question  What is", "weather(city='Tolvik') asked"):
        assert part in shown
    assert "answer    You are welcome." in run("show", left, lines[1].split()[0]).output
    assert left.read_bytes() == before


def test_as_json(left: Path) -> None:
    thanks, weather = told("list", left)
    assert (thanks["status"], thanks["answer"], thanks["calls"]) == ("finished", "You are welcome.", 0)
    (call,) = told("show", left, weather["id"])["calls"]
    assert (call["name"], call["arguments"], call["state"]) == ("weather", {"city": "Tolvik"}, "asked")


def test_a_turn_that_was_left_goes_on_without_a_terminal(left: Path) -> None:
    """Nobody is there to approve the call."""
    done = subprocess.run([*COMMAND, *of_the_left_one(left)], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "asks first, and nobody is there: it does not run" in done.stdout
    _, weather = told("list", left)
    assert weather["status"] == "finished"
    (call,) = told("show", left, weather["id"])["calls"]
    assert call["state"] == "denied"
    assert "has finished; `agentkv runs show`" in refused("resume", left, weather["id"], "--model", "nano")


def at_a_terminal(command: list[str], **settings: str) -> pexpect.spawn:
    env = {**os.environ, "TERM": "xterm", **settings}
    return pexpect.spawn(command[0], command[1:], encoding="utf-8", timeout=PATIENCE, env=env)


def test_at_a_terminal_a_person_approves(left: Path) -> None:
    command = [*COMMAND, *of_the_left_one(left)]
    person = pexpect.spawn(
        command[0], command[1:], encoding="utf-8", timeout=PATIENCE, env={**os.environ, "TERM": "xterm"}
    )
    person.expect("asks first: y runs it")
    person.send("y")
    person.expect(ANSWER)
    person.expect(pexpect.EOF)
    person.close()
    assert person.exitstatus == 0
    assert told("list", left)[1]["answer"] == ANSWER


def test_what_waits_for_an_approval_is_shown_and_answered(left: Path) -> None:
    _, weather = told("list", left)
    (waits,) = told("approvals", left)
    assert waits["key"] == f"{weather['id']}-0"
    assert (waits["run"], waits["branch"], waits["name"]) == (weather["id"], "desk", "weather")
    _, line = run("approvals", left).output.splitlines()
    key = line.split()[0]
    assert line.endswith("weather(city='Tolvik')")
    assert f"approval  {waits['key']} waits for an answer" in run("show", left, weather["id"]).output
    assert told("show", left, weather["id"])["approvals"] == [waits["key"]]
    for wrong in ([], ["--yes", "--reason", "x"], ["--yes", "--no"]):
        assert run("answer", left, key, *wrong).exit_code == 2
    assert "has no approval 'abc-0'" in refused("answer", left, "abc-0", "--yes")
    assert run("answer", left, key, "--no", "--reason", "on Sunday").output == "Denied: weather(city='Tolvik')\n"
    assert run("answer", left, key, "--no").output == f"Denied: {waits['key']}, as before\n"
    assert "it was denied: on Sunday" in refused("answer", left, key, "--yes")
    assert run("approvals", left).output == "Nothing waits for an approval in it.\n"
    assert told("approvals", left) == told("show", left, weather["id"])["approvals"] == []
    assert "denied" in run("show", left, weather["id"]).output


@pytest.mark.parametrize(
    ("called", "found"),
    [
        ("12ab-0", "12ab34-0"),
        ("12ab-1", "several approvals begin with 12ab-1: 12ab34-1, 12ab99-1"),
        ("12ab34-1", "12ab34-1"),
        ("12ab34", "several approvals begin with 12ab34: 12ab34-0, 12ab34-1"),
        ("12", "several approvals begin with 12: 12ab34-0, 12ab34-1, 12ab99-1"),
        ("12ab9", "12ab99-1"),
        ("7", "7f-3-0"),
        ("7f-3", "no approval '7f-3'"),
        ("7-3-0", "7f-3-0"),
        ("", "no approval ''"),
        ("-0", "no approval '-0'"),
    ],
)
def test_an_approval_is_found_by_how_its_key_begins(called: str, found: str) -> None:
    keys = ["12ab34-0", "12ab34-1", "12ab99-1", "7f-3-0"]
    if found in keys:
        assert run_called(keys, called, Path("runs.db"), "approval") == found
    else:
        with pytest.raises(kv.JournalError, match=found):
            run_called(keys, called, Path("runs.db"), "approval")


def test_a_turn_that_was_answered_goes_on_without_a_terminal(left: Path) -> None:
    (waits,) = told("approvals", left)
    assert run("answer", left, waits["key"], "--yes").exit_code == 0
    done = subprocess.run([*COMMAND, *of_the_left_one(left)], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert ANSWER in done.stdout
    assert told("list", left)[1]["status"] == "finished"


def test_at_a_terminal_another_may_answer_first(left: Path) -> None:
    command = [*COMMAND, *of_the_left_one(left)]
    person = at_a_terminal(command)
    person.expect("asks first: y runs it")
    (waits,) = told("approvals", left)
    assert run("answer", left, waits["key"], "--yes").exit_code == 0
    person.expect(ANSWER)
    person.expect(pexpect.EOF)
    person.close()
    assert person.exitstatus == 0


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_one_that_is_stopped_goes_on_later(left: Path, signum: int) -> None:
    options = of_the_left_one(left)
    person = at_a_terminal([*COMMAND, *options], WAITS="yes")
    person.expect("asks first: y runs it")
    person.send("y")
    person.expect("-> weather")
    if signum == signal.SIGINT:
        person.send("\x03")
    else:
        person.kill(signum)
    person.expect("stopped; the same command goes on with it")
    person.expect(pexpect.EOF)
    person.close()
    assert person.exitstatus == 128 + signum
    assert told("list", left)[1]["status"] == "cancelled"
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    _, weather = told("list", left)
    first, *_ = told("show", left, weather["id"])["calls"]
    assert (weather["status"], first["state"]) == ("finished", "unknown")  # the tool is not idempotent


def test_what_it_needs_is_asked_for(left: Path, tmp_path: Path) -> None:
    options = of_the_left_one(left)
    at = options.index("--tools")
    assert "the run has the tools weather, which are not here" in refused(*options[:at], *options[at + 2 :])
    (tmp_path / "other.py").write_text("import agentkv as kv\n@kv.tool\ndef other() -> str:\n    'o'\n    return ''\n")
    assert "weather" in refused(*options[:at], "--tools", tmp_path / "other.py")
    assert told("list", left)[1]["status"] == "unfinished"


@pytest.mark.parametrize(
    ("options", "why", "status"),
    [
        (["--capacity", "10"], "larger cache", "unfinished"),  # before it goes on
        (["--max-tokens", "20"], "larger max_tokens", "failed"),  # while it does
    ],
)
def test_why_it_did_not_go_on_is_one_line(left: Path, options: list[str], why: str, status: str) -> None:
    command = [*COMMAND, *of_the_left_one(left), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("error: ")
    assert why in done.stderr
    assert told("list", left)[1]["status"] == status


def test_turns_are_dropped(left: Path) -> None:
    thanks, weather = told("list", left)
    assert run("drop", left, "--finished").output == "Dropped 1 run.\n"
    assert [info["id"] for info in told("list", left)] == [weather["id"]]
    assert b"You are welcome" in left.read_bytes()  # the branch holds the conversation
    assert "has no run" in refused("drop", left, thanks["id"])
    assert run("drop", left, weather["id"][:6]).output == "Dropped 1 run.\n"
    assert run("list", left).output == "There are no runs in it.\n"
    assert b"What is the weather in Tolvik?" not in left.read_bytes()
    assert run("drop", left).exit_code == 2
    assert run("drop", left, "--finished", "abc").exit_code == 2


@pytest.mark.anyio
async def test_while_a_process_uses_it_it_is_read(tmp_path: Path) -> None:
    """The same process has it here: locks know no difference."""
    path, begun = tmp_path / "runs.db", anyio.Event()

    @kv.tool
    async def weather(city: str) -> str:
        "weather"
        begun.set()
        await anyio.sleep(NEVER)
        return city

    agent = kv.Agent("x", tools=[weather])
    script = lambda text: kv.testing.call("weather", city="\x1b[31mred\x07")  # noqa: E731

    async def turn(branch: kv.Branch) -> None:
        with suppress(kv.ContextClosed):  # or it is cancelled before it hears of that
            await agent.run(branch, "\x1b[2Jclear\x07")

    async with anyio.create_task_group() as group:
        async with kv.testing.replies(script, capacity=512, journal=path) as ctx:
            group.start_soon(turn, await agent.trunk(ctx))
            await begun.wait()
            (info,) = told("list", path)
            assert info["status"] == "running"
            for shown in (run("list", path).output, run("show", path, info["id"]).output):
                assert not any(c < " " and c != "\n" for c in shown), shown
                assert "\\x1b[2Jclear\\x07" in shown
            assert "used by another process" in refused("drop", path, info["id"])
        group.cancel_scope.cancel()
    assert told("list", path)[0]["status"] == "unfinished"


def write_text(path: Path) -> None:
    path.write_text("What a journal is not. " * 100)


def of_another_program(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE things (a)")
    connection.close()


def newer(path: Path) -> None:
    checkpointed(path.with_name("runs.db"), path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 1000")
    connection.close()


def cut(path: Path) -> None:
    checkpointed(path.with_name("runs.db"), path)
    os.truncate(path, path.stat().st_size // 3)


def flipped(path: Path) -> None:
    checkpointed(path.with_name("runs.db"), path)
    data = bytearray(path.read_bytes())
    data[4096:] = bytes(255 - byte for byte in data[4096:])
    path.write_bytes(data)


def checkpointed(source: Path, path: Path) -> None:
    connection = sqlite3.connect(source)
    connection.execute("VACUUM INTO ?", (str(path),))
    connection.close()


NO_JOURNALS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "no journal "),
    "a folder": (Path.mkdir, "is no file"),
    "a pipe": (os.mkfifo, "is no file"),
    "a text": (write_text, "the file is damaged or no journal"),
    "empty": (Path.touch, "and no journal"),
    "another database": (of_another_program, "and no journal"),
    "newer": (newer, "was written by a newer agentkv"),
    "cut": (cut, "damaged"),
    "flipped": (flipped, "damaged"),
}


@pytest.mark.parametrize("kind", NO_JOURNALS)
def test_what_is_no_journal_is_refused_and_stays(left: Path, kind: str) -> None:
    make, why = NO_JOURNALS[kind]
    path = left.with_name("other.db")
    make(path)
    before = path.read_bytes() if path.is_file() else None
    for command in (["list"], ["show"], ["drop"], ["resume"]):
        more = [] if command == ["list"] else ["abc"]
        options = ["--model", "nano"] if command == ["resume"] else []
        assert why in refused(*command, path, *more, *options)
    assert (path.read_bytes() if path.is_file() else None) == before


@pytest.mark.parametrize("start", ["{", "[]", '{"unknown": 1}', "\x00"])
def test_a_damaged_entry_names_its_run_which_can_be_dropped(left: Path, start: str) -> None:
    thanks, weather = told("list", left)
    with sqlite3.connect(left) as connection:
        connection.execute("UPDATE runs SET start = ? WHERE id = ?", (start, thanks["id"]))
    connection.close()
    assert f"run {thanks['id']} cannot be read" in refused("list", left)
    assert run("drop", left, thanks["id"]).exit_code == 0
    assert [info["id"] for info in told("list", left)] == [weather["id"]]


A, B, C = "aaaaaaaa11", "aaaaaaaa22", "bcbcbcbc33"
IDS = [A, B, C, f"{A}-0", f"{A}-0-2", f"{C}-1"]


def test_ids_are_as_short_as_they_may_be() -> None:
    assert short_ids(IDS[2:3] + IDS[5:]) == {C: "bcbcbcbc", f"{C}-1": "bcbcbcbc-1"}
    shorts = short_ids(IDS)
    assert shorts[A] == "aaaaaaaa1"
    assert shorts[f"{A}-0-2"] == "aaaaaaaa1-0-2"
    assert [run_called(IDS, short, Path("x")) for short in shorts.values()] == IDS


@pytest.mark.parametrize(
    ("called", "says"),
    [
        ("aaaa", "several runs begin with aaaa: aaaaaaaa1, aaaaaaaa2"),
        ("d", "has no run 'd'; the last ones: aaaaaaaa2"),
        ("", "has no run ''"),
        ("-0", "has no run '-0'"),
        ("bc-0", "has no run 'bc-0'"),
        ("%", "has no run '%'"),
    ],
)
def test_an_id_of_none_or_of_several_is_refused(called: str, says: str) -> None:
    with pytest.raises(kv.JournalError) as caught:
        run_called(IDS, called, Path("x"))
    assert says in str(caught.value)
