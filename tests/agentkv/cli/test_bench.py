"""`agentkv bench spec`: what it measures, prints and draws, and how it refuses."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import agentkv as kv
from agentkv._bench.results import BenchResult
from agentkv._bench.row_costs import ROWS, ModelFacts
from agentkv._bench.speculation import measure as speculation_measure
from agentkv._bench.strategies import STRATEGIES
from agentkv._bench.work import KINDS, read_work
from agentkv.cli import app
from agentkv.cli.bench import _check_lossless, _Run
from tests.agentkv.bench.test_results import sample

FEW = ["--repeat", "1", "--max-tokens", "24", "--threads", "1", "--capacity", "1024"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["bench", "spec", *map(str, arguments)], env={"COLUMNS": "100"})


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("one two three four. one two three four. one two\n\nThe quick brown fox. The quick\nOnce\n")
    return path


def test_every_strategy_beside_plain_decoding(folder: Path, prompts: Path) -> None:
    done = run(folder, "--prompts", prompts, "--draft-model", folder, *FEW)
    assert done.exit_code == 0, done.output
    assert "3 prompts, 1 at a time, greedy" in " ".join(done.output.split())
    rows = [line.split() for line in done.output.splitlines()]
    assert [row[0] for row in rows if row and row[0] in ("plain", *STRATEGIES)] == [
        "plain",
        "Suffix",
        "PromptLookup",
        "DraftModel",
    ]
    [plain] = [row for row in rows if row and row[0] == "plain"]
    assert (plain[1], plain[2], plain[-1]) == ("1.00", "1.00", "1.00")


@pytest.mark.parametrize("options", [[], ["--temperature", "0.8"]], ids=["greedy", "sampled"])
def test_json(folder: Path, prompts: Path, options: list[str]) -> None:
    done = run(
        folder,
        "--prompts",
        prompts,
        "--draft-model",
        folder,
        "--no-adaptive",
        "--branches",
        2,
        "--json",
        *FEW,
        *options,
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["prompts"], report["branches"], report["repeat"], report["adaptive"]) == (3, 2, 1, False)
    plain, suffix, lookup, model = report["results"]
    assert [result["name"] for result in report["results"]] == ["plain", "Suffix", "PromptLookup", "DraftModel"]
    assert {result["tokens"] for result in report["results"]} == {plain["tokens"]}
    assert all(result["same_output"] for result in report["results"])
    assert plain["tokens_per_forward"] == 1
    assert plain["forwards_per_token"] < 1  # two branches share forwards
    assert plain["drafted"] == 0 < model["accepted"] <= model["drafted"]
    assert model["tokens_per_forward"] > 1
    assert all(drafts["drafted"] >= drafts["accepted"] for drafts in (suffix, lookup))
    assert sum(model["accepted_by_depth"]) == model["accepted"]  # of each depth, without a schema
    assert model["accepted_by_depth"] == sorted(model["accepted_by_depth"], reverse=True)
    assert 0 < model["accepted_by_depth"][0] <= model["drafts"]
    assert report["bit_exact"] is True
    assert [int(rows) for rows in report["row_ms"]] == list(ROWS)
    assert all(ms > 0 for ms in report["row_ms"].values())


def test_plot(folder: Path, prompts: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "spec.png"
    done = run(folder, "--prompts", prompts, "--plot", target, *FEW)
    assert done.exit_code == 0, done.output
    data = target.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert 4_000 < len(data) < 60_000


def test_a_plot_that_cannot_be_written_costs_no_results(folder: Path, prompts: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run(folder, "--prompts", prompts, "--plot", tmp_path / "missing" / "spec.png", *FEW)
    assert done.exit_code == 1
    assert "PromptLookup" in done.output
    assert "No such file or directory" in done.output


def test_a_plot_without_matplotlib_is_refused_at_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = run(folder, "--plot", tmp_path / "spec.png")
    assert done.exit_code == 1
    assert "pip install 'agentkv-sdk[plot]'" in done.output


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.txt", None, "cannot be read"),
        ("empty.txt", "\n \n", "holds no prompt"),
        ("a.jsonl", '"fine"\n{"messages": []}\n', "a.jsonl, line 2"),
        ("b.jsonl", "{", "b.jsonl, line 1 is not JSON"),
        ("c.jsonl", "3", "c.jsonl, line 1"),
    ],
)
def test_unreadable_prompts(folder: Path, tmp_path: Path, name: str, content: str | None, says: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    done = run(folder, "--prompts", path)
    assert done.exit_code == 1
    assert says in done.output.replace("\n", " ")
    assert "Traceback" not in done.output


def test_what_cannot_be_measured(folder: Path, prompts: Path, tmp_path: Path) -> None:
    for arguments, says in (
        ([tmp_path / "nowhere"], "no such folder"),
        ([folder, "--prompts", prompts, "--draft-model", kv.models.nano()], "tokenizers"),
        ([folder, "--prompts", prompts, "--capacity", "8"], "--capacity"),
        ([folder, "--work", "edit,cook"], "'cook' is no kind of work; there are edit, extract, tools, prose"),
        ([folder, "--work", "edit", "--prompts", prompts], "pass one of them"),
        (["no-such-model"], "no short name"),
    ):
        done = run(*arguments)
        assert done.exit_code == 1
        assert "error:" in done.output
        assert says in " ".join(done.output.split())
        assert "Traceback" not in done.output
    assert run(folder, "--branches", "0").exit_code == 2


def test_kinds_of_work_by_name(folder: Path) -> None:
    done = run(folder, "--work", "prose,extract", "--n", 2, "--depths", *FEW)
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines()]
    kinds = [row[0] for row in rows if len(row) > 1 and row[1] == "PromptLookup"]
    assert kinds == ["prose", "extract"] * 2  # both tables
    assert "4 prompts, 1 at a time, greedy" in " ".join(done.output.split())
    assert "a forward of 1 row takes" in done.stdout


def test_all_kinds_of_work_over_a_name_that_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkv.cli.bench._asked", lambda *_: read_work(list(KINDS), 1))  # not nano's own prompts
    done = run("nano", "--json", *FEW, "--capacity", 4096)
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)["results"]
    assert [result["work"] for result in results] == [
        kind for kind in KINDS for _ in ("plain", "Suffix", "PromptLookup", "Eagle")
    ]
    assert all(result["same_output"] for result in results)


def test_what_was_measured_is_shown_where_the_rest_does_not_fit(folder: Path) -> None:
    done = run(folder, "--work", "prose,edit", "--n", 1, *FEW)  # 1,024 cells
    assert done.exit_code == 1
    assert "PromptLookup" in done.stdout
    assert "--capacity" in done.output


def test_an_interrupt_leaves_the_kinds_of_work_that_are_complete(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def measure(model: Path, strategies: Any, work: str, *rest: Any) -> list[BenchResult]:
        if work == "extract":
            signal.raise_signal(signal.SIGINT)
        return await speculation_measure(model, strategies, work, *rest)

    monkeypatch.setattr("agentkv._bench.speculation.measure", measure)
    done = run(folder, "--work", "prose,extract", "--n", 1, "--json", *FEW)
    assert done.exit_code == 130
    assert "stopped" in done.stderr
    assert [result["work"] for result in json.loads(done.stdout)["results"]] == ["prose"] * 3


@pytest.mark.parametrize(("exact", "status"), [(True, 1), (False, None)])
def test_a_token_that_is_not_plain_decodings_is_said(
    exact: bool, status: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, other = [sample(0, 1.0, 10)], [sample(0, 0.5, 10, output=8)]
    facts = ModelFacts(backend="cpu", quantization="none", bit_exact=exact, row_ms={1: 1.0})
    results = [BenchResult.of("edit", name, each, plain) for name, each in (("plain", plain), ("Wrong", other))]
    found = None
    try:
        _check_lossless(_Run(facts, results))
    except typer.Exit as left:
        found = left.exit_code
    assert found == status
    said = " ".join(capsys.readouterr().err.split())
    assert "edit: Wrong did not say what plain decoding says (group 1, prompt 1, token 1: 8, not 7)" in said
    assert ("NOT LOSSLESS" in said) == exact
