"""`agentkv bench spec`: what it measures, prints and draws, and how it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import agentkv as kv
from agentkv._bench.prompts import BenchPrompt, default_prompts, read_prompts
from agentkv._bench.results import BenchResult as Measured
from agentkv._bench.results import Sample
from agentkv.cli import app

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
    assert [row[0] for row in rows if row and row[0] in ("plain", "PromptLookup", "DraftModel", "Eagle")] == [
        "plain",
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
    plain, lookup, model = report["results"]
    assert [result["name"] for result in report["results"]] == ["plain", "PromptLookup", "DraftModel"]
    assert {result["tokens"] for result in report["results"]} == {plain["tokens"]}
    assert all(result["same_output"] for result in report["results"])
    assert plain["tokens_per_forward"] == 1
    assert plain["forwards_per_token"] < 1  # two branches share forwards
    assert plain["drafted"] == 0 < model["accepted"] <= model["drafted"]
    assert model["tokens_per_forward"] > 1
    assert lookup["drafted"] >= lookup["accepted"]


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
    ):
        done = run(*arguments)
        assert done.exit_code == 1
        assert "error:" in done.output
        assert says in done.output.replace("\n", " ")
        assert "Traceback" not in done.output
    assert run(folder, "--branches", "0").exit_code == 2


def test_prompts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    messages = [{"role": "user", "content": "Hi"}]
    lines = ["text", messages, {"messages": messages, "tools": [{"name": "x"}]}]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert read_prompts(path) == [BenchPrompt("text"), BenchPrompt(messages), BenchPrompt(messages, [{"name": "x"}])]


def test_prompts_that_come_with_the_package(folder: Path) -> None:
    generic, nano = default_prompts(folder), default_prompts(kv.models.nano())
    assert len(generic) >= 10
    assert len(nano) == 64
    assert all(prompt.tools is not None for prompt in nano)


def test_the_prompts_of_nano_are_what_the_script_writes(tmp_path: Path) -> None:
    from examples.nano.prompts import main

    main(tmp_path / "prompts.jsonl", 64, 1)
    assert (tmp_path / "prompts.jsonl").read_bytes() == (kv.models.nano() / "prompts.jsonl").read_bytes()


def test_times_are_medians_of_each_group() -> None:
    def sample(group: int, seconds: float, tokens: int, output: int = 7) -> Sample:
        return Sample(
            group=group,
            seconds=seconds,
            tokens=tokens,
            forwards=tokens // 2,
            rides=tokens // 2,
            drafted=tokens,
            accepted=tokens // 2,
            draft_seconds=seconds / 10,
            output=((output,),),
        )

    plain = [sample(0, s, 10) for s in (0.4, 9.0, 0.2)] + [sample(1, 0.6, 30) for _ in range(3)]
    fast = [sample(0, s, 10) for s in (0.1, 0.2, 5.0)] + [sample(1, 0.3, 30) for _ in range(3)]
    result = Measured.of("fast", fast, plain)
    assert result.tokens == 40
    assert result.ms_per_token == pytest.approx(1000 * 0.5 / 40)
    assert result.speedup == pytest.approx(2)
    assert (result.tokens_per_forward, result.forwards_per_token, result.acceptance) == (2, 0.5, 0.5)
    assert result.same_output
    assert not Measured.of("wrong", [*fast[:-1], sample(1, 0.3, 30, output=8)], plain).same_output
