"""Two runs beside each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scipy.stats import binomtest
from typer.testing import CliRunner

from agentkv.cli import app
from agentkv.evaluation.compare import Comparison, comparisons, read_report
from agentkv.evaluation.judge import judged
from agentkv.evaluation.outcome import Called, Outcome
from agentkv.evaluation.report import report
from agentkv.evaluation.run import CaseResult

from .conftest import document, made


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (5, 5), (0, 6), (9, 2), (3, 20)])
def test_the_chance_is_what_scipy_says(first: int, second: int) -> None:
    theirs = binomtest(first, first + second).pvalue if first + second else 1.0
    assert Comparison("x", 99, 1, first, second).chance == pytest.approx(theirs)


def written(path: Path, right: str, category: str = "weather") -> Path:
    """A report of so many cases, "1" of those that were right."""
    results = []
    for at, mark in enumerate(right):
        case = made(document(id=str(at), category=category))
        outcome = Outcome((Called("get_weather", {"city": "Oslo" if mark == "1" else "Rome"}),))
        results.append(CaseResult(case, outcome, judged(case, outcome)))
    path.write_text(report({"model": "m"}, results))
    return path


def test_cases_that_both_have_are_counted(tmp_path: Path) -> None:
    one, two = written(tmp_path / "a.json", "110010"), written(tmp_path / "b.json", "1011")
    counted = Comparison("weather", n=4, both=1, first=1, second=2)
    [weather, every] = comparisons(read_report(one), read_report(two))
    assert weather == counted
    assert every.row() == ("all", "4", "2", "3", "1", "2", "100.0%")


def test_the_command(tmp_path: Path) -> None:
    one, two = written(tmp_path / "a.json", "11111111"), written(tmp_path / "b.json", "00000001")
    done = CliRunner().invoke(app, ["eval", "compare", str(one), str(two)])
    assert done.exit_code == 0, done.output
    title, _, weather, every = done.stdout.splitlines()
    assert title == "a.json and b.json"
    assert weather.split() == ["weather", "8", "8", "1", "7", "0", "1.6%"]
    assert every.split()[1:] == weather.split()[1:]


def test_refusals(tmp_path: Path) -> None:
    one = written(tmp_path / "a.json", "1")
    for name, text, why in (
        ("b.json", "{", "is not what `agentkv eval tools --json` writes: Invalid JSON"),
        ("c.json", json.dumps({"cases": [{"id": 1}]}), "is not what `agentkv eval tools --json` writes"),
        ("d.json", written(tmp_path / "d.json", "1", "other").read_text(), "have no case in common"),
    ):
        (tmp_path / name).write_text(text)
        done = CliRunner().invoke(app, ["eval", "compare", str(one), str(tmp_path / name)])
        assert (done.exit_code, why in done.stderr) == (1, True), done.output
    done = CliRunner().invoke(app, ["eval", "compare", str(one), str(tmp_path / "none.json")])
    assert "none.json: No such file" in done.stderr
