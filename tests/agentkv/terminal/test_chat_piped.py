"""`agentkv chat` without a terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from rich.console import Console

import agentkv as kv
from agentkv.terminal.chat import show_turn
from agentkv.terminal.session import ChatSession
from agentkv.testing import call
from tests.waiting import NEVER, PATIENCE

from .chats import ANSWER, tool_file


def run(*options: str, stdin: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentkv", "chat", "--threads", "1", *options]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=PATIENCE)


def test_without_a_terminal_lines_are_answered() -> None:
    ended = run(stdin="Who are you?\n\n/fork a\nThank you!\n/quit\nWho are you?\n")
    assert (ended.stdout.splitlines(), ended.stderr, ended.returncode) == (
        [ANSWER, "on a now, a fork of main", "You are welcome."],
        "",
        0,
    )


def test_without_stdin_it_says_so() -> None:
    done = subprocess.run(["sh", "-c", f"{sys.executable} -m agentkv chat <&-"], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "no stdin to read messages from" in done.stderr


def test_without_a_terminal_nobody_lets_tools_run_that_ask_first(tmp_path: Path) -> None:
    tools = tool_file(tmp_path, "return 'hail'", "(approve=True)")
    ended = run("--tools", tools, stdin="What is the weather in Tolvik?\n")
    assert ended.returncode == 0
    assert "weather(city='Tolvik') asks first, and nobody is there: it does not run" in ended.stdout
    assert "hail" not in ended.stdout


def test_a_tool_that_runs_out_of_time_does_not_hold_up_the_end(tmp_path: Path) -> None:
    ended = run(
        "--tools", tool_file(tmp_path, f"time.sleep({NEVER})", "(timeout=0.1)"), stdin="What is the weather in Oslo?\n"
    )
    assert ended.returncode == 0
    assert "<- weather" in ended.stdout


def test_what_goes_wrong_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0")
    (tmp_path / "empty.py").write_text("")
    for options, stdin, said in (
        ([str(tmp_path)], "", "error: "),
        (["--tools", str(tmp_path / "bad.py")], "", "ZeroDivisionError"),
        (["--tools", str(tmp_path / "empty.py")], "", "@kv.tool"),
        (["--tools", str(tmp_path / "none.py")], "", "none.py"),
        (["--load", str(tmp_path / "none.kv")], "", "none.kv"),
        ([], "/nope\n", "there is no /nope"),
        (["--capacity", "50"], "Who are you?\n", "--capacity)"),
    ):
        ended = run(*options, stdin=stdin)
        assert ended.returncode == 1
        assert said in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


def test_a_call_that_is_made_again_is_shown_as_one_in_lines_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Each result stands behind its call, and what it says has no line that begins as another's."""

    async def talk() -> None:
        async with kv.testing.replies([call("weather", city="Oslo")] * 2 + ["Rain."]) as ctx:
            talk = ChatSession(ctx, kv.Agent("You are Nano.", tools=[weather]), [weather])
            await talk.begin()
            await show_turn(talk.ask("Weather?"), Console(width=200), None)

    anyio.run(talk)
    assert capsys.readouterr().out.splitlines() == [
        "-> weather(city='Oslo')",
        "<- weather: rain",
        "   -> wind",
        "-> weather(city='Oslo')",
        "<- weather: this call was made before, and gave: rain",
        "   -> wind",
        "   Do not make it again; go on with that",
        "Rain.",
    ]


@kv.tool
def weather(city: str) -> str:
    """weather in a city"""
    return "rain\n-> wind"
