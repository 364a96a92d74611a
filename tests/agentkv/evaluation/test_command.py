"""`agentkv eval tools`: what it prints and writes, and how it refuses."""

from __future__ import annotations

import html.parser
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from agentkv.cli import app
from agentkv.evaluation.judge import judged
from agentkv.evaluation.outcome import Called, Outcome
from agentkv.evaluation.page import page
from agentkv.evaluation.run import CaseResult as Judged
from agentkv.evaluation.table import COLUMNS, scores
from tests.waiting import PATIENCE

from .conftest import document, in_world, made

FEW = ["--n", "1", "--categories", "one_tool,no_tool", "--max-tokens", "64", "--threads", "1", "--capacity", "8192"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["eval", "tools", *map(str, arguments)], env={"COLUMNS": "120"})


@pytest.mark.parametrize("through", [[], ["--serve"]], ids=["agent", "serve"])
def test_nano_end_to_end(tmp_path: Path, through: list[str]) -> None:
    done = run("nano", *FEW, *through, "--json", tmp_path / "a.json", "--page", tmp_path / "a.html")
    assert done.exit_code == 0, done.output
    title, columns, *rows = done.stdout.splitlines()
    assert title == f"nano through {'agentkv serve' if through else 'kv.Agent'}: 2 cases"
    assert columns.split() == list(COLUMNS)
    assert [row.split()[0] for row in rows[:3]] == ["one_tool", "no_tool", "all"]
    told = json.loads((tmp_path / "a.json").read_text())
    assert told["through"] == ("agentkv serve" if through else "kv.Agent")
    assert [score["category"] for score in told["scores"]] == ["one_tool", "no_tool", "all"]
    assert [case["id"] for case in told["cases"]] == ["one_tool_0", "no_tool_0"]
    assert told["cases"][0]["calls"][0]["name"] == "calculate"
    assert told["cases"][0]["right"] is True  # nano was trained to use a calculator
    right = sum(case["right"] for case in told["cases"])
    assert told["scores"][-1]["right"] == right
    assert ("no_tool_0" in (tmp_path / "a.html").read_text()) is not told["cases"][1]["right"]


def test_a_file_of_cases_and_a_seed(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(f"{json.dumps(document())}\n{json.dumps(in_world(id='b', category='turns'))}")
    done = run("nano", "--cases", file, "--max-tokens", 48, "--threads", 1)
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == ["weather", "turns", "all"]
    assert run("nano", "--seed", 7, *FEW).exit_code == 0


def test_bfcl(bfcl: Path) -> None:
    done = run("nano", "--cases", bfcl, "--categories", "irrelevance", "--n", 2, "--max-tokens", 16, "--threads", 1)
    assert done.exit_code == 0, done.output
    assert [line.split()[2] for line in done.stdout.splitlines()[2:]] == ["2", "2"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nano", "--cases", "nowhere"], "nowhere: No such file or directory"),
        (["nano", "--cases", "."], ". has no cases of BFCL; `pip download"),
        (["nano", "--categories", "one"], "there is no category 'one' here; there are one_tool, several_tools"),
        (["nano", "--server", "http://127.0.0.1:1/v1", "--n", "1"], "nothing answers at http://127.0.0.1:1/v1/"),
        (["nano", "--server", "here", "--n", "1"], "http://host:8080/v1"),
        (["nano", "--server", "http://a/v1", "--serve"], "pass one of them"),
        (["nano", "--server", "http://a/v1", "--call-format", "hermes"], "the server at --server has its own"),
        (["nano", "--serve", "--style", "plan"], "--style is of an agent"),
        (["nano", "--cases", ".", "--seed", "1"], "pass one of them"),
        (["nowhere/at-all"], "nowhere/at-all: no such folder"),
        (["nano", "--call-format", "morse", "--n", "1"], "morse"),
    ],
)
def test_refusals(arguments: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 1, done.output
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert why in line


def test_stopped_it_tells_what_there_is(tmp_path: Path) -> None:
    """Once the first cases are done, Ctrl-C ends it with the table of these."""
    script = (
        "import os, signal\n"
        "from agentkv.evaluation import run\n"
        "judged, n = run.judged, []\n"
        "def counted(case, outcome):\n"
        "    n.append(1)\n"
        "    if len(n) == 3: os.kill(os.getpid(), signal.SIGINT)\n"
        "    return judged(case, outcome)\n"
        "run.judged = counted\n"
        "from agentkv_command import main\n"
        "main()\n"
    )
    arguments = ["eval", "tools", "nano", "--parallel", "1", "--max-tokens", "8", "--json", str(tmp_path / "a.json")]
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, "COLUMNS": "120"}
    )
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert done.stderr.splitlines()[-1] == "stopped"
    told = json.loads((tmp_path / "a.json").read_text())
    assert 2 <= len(told["cases"]) <= 4
    assert done.stdout.startswith(f"nano through kv.Agent: {len(told['cases'])} of 100 cases")


@pytest.mark.parametrize(
    ("too_long", "status", "said"), [(2, 1, "all 2 cases have no reply"), (1, 0, "1 of 2 cases have no reply")]
)
def test_cases_without_a_reply_are_told_of(too_long: int, status: int, said: str, tmp_path: Path) -> None:
    asked = ["Weather in Oslo? " * 400] * too_long + ["Weather in Oslo?"] * (2 - too_long)
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join(json.dumps(document(id=str(at), question=each)) for at, each in enumerate(asked)))
    done = run("nano", "--cases", file, "--max-tokens", 8, "--threads", 1, "--capacity", 1024)
    assert (done.exit_code, done.stdout.splitlines()[0]) == (status, "nano through kv.Agent: 2 cases")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"{said}; the first: ContextFull: ")


@pytest.mark.parametrize("option", ["--style", "--tool-choice", "--call-threshold", "--n"])
def test_what_an_option_does_not_take_is_refused_before_a_case_is_asked(option: str) -> None:
    done = run("nano", *FEW, option, "-2")
    assert (done.exit_code, option in done.output, "cases" in done.output) == (2, True, False)


@pytest.mark.parametrize(
    ("through", "missing"),
    [(["--server", "http://a/v1"], "openai"), *((["--serve"], each) for each in ("openai", "uvicorn", "starlette"))],
)
def test_what_is_not_installed_is_named(through: list[str], missing: str) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None; from agentkv.cli import app; app()"
    command = [sys.executable, "-c", script, "eval", "tools", "nano", *through]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {missing}")
    assert done.stderr.endswith(" is missing; install it with: pip install 'agentkv-sdk[serve]'\n")


def test_a_table_counts_by_category() -> None:
    rescued = Called("get_weather", {"city": "Oslo"}, rescued="json")
    wrong = Called("get_weather", {"city": "Rome"})
    outcomes = [
        ("x", Outcome((rescued,), tokens=10, seconds=1.5)),
        ("y", Outcome((), stopped="max_tokens", tokens=5, seconds=1.0)),
        ("x", Outcome((rescued, wrong), tokens=20, seconds=0.5)),
        ("y", Outcome(error="ContextFull: no room")),
    ]
    results = [judged_of(outcome, category=category, id=str(at)) for at, (category, outcome) in enumerate(outcomes)]
    talked_on = Outcome(stopped="max_tokens", tokens=5, seconds=0.8)  # BFCL takes it for right
    results.append(judged_of(talked_on, category="z", id="4", expected={"called": False}))
    assert [score.row() for score in scores(results)] == [
        ("x", "1", "2", "50%", "9-91%", "3", "2", "30", "1.0", "0", "0", "0"),
        ("y", "0", "2", "0%", "0-66%", "0", "0", "5", "0.5", "1", "0", "1"),
        ("z", "1", "1", "100%", "21-100%", "0", "0", "5", "0.8", "1", "1", "0"),
        ("all", "2", "5", "40%", "12-77%", "3", "2", "40", "0.8", "2", "1", "1"),
    ]


def judged_of(outcome: Outcome, **changes: Any) -> Judged:
    case = made(document(**changes))
    return Judged(case, outcome, judged(case, outcome))


class _Elements(html.parser.HTMLParser):
    """Counts the elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.sources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]


def test_a_page_shows_what_is_wrong_and_obeys_nothing_in_it() -> None:
    evil = "</pre><script>alert(1)</script>"
    wrong = Outcome((Called(evil, {evil: evil}, error=evil, rescued="json"),), evil, evil, stopped="max_tokens")
    results = [
        judged_of(wrong, question=evil, id=evil),
        judged_of(Outcome((Called("get_weather", {"city": "Oslo"}),)), id="right"),
        Judged(made(in_world(id="turn")), Outcome(text="Well."), judged(made(in_world(id="turn")), Outcome())),
    ]
    text = page(evil, {"model": evil}, results)
    elements = _Elements(text)
    assert "script" not in elements.names
    assert elements.sources == ["#weather"]  # nothing is loaded from elsewhere
    assert text.count("<summary><b>") == 2
    assert "(rescued from json)" in text
    assert "2 of these cases are not right" in text
    assert "never got what get_weather" in text
    assert "alert(1)" in text
    assert "All cases are right" in page("a", {}, results[1:2])


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_bytes(b"\xff\xfe")
    done = run("nano", "--cases", file)
    assert (done.exit_code, done.stderr.startswith("error: ")) == (1, True)
    target = tmp_path / "missing" / "a.json"
    done = run("nano", *FEW, "--json", target)
    assert done.exit_code == 1
    assert f"{target}: No such file or directory" in done.stderr
