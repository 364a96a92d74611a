"""`agentkv inspect --quality`: what it prints, and what it refuses before it prints anything."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from agentkv_runtime.folder.manifest import write_manifest
from agentkv_runtime.folder.model_folder import read_model_folder
from typer.testing import CliRunner, Result

from agentkv.cli import app
from agentkv.models import nano
from tests.conftest import FolderFactory


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)], env={"COLUMNS": "200"})


def rows(done: Result) -> dict[str, str]:
    """What is said under `quality`, by name."""
    assert done.exit_code == 0, (done.output, done.exception)
    lines = done.output.split("\nquality\n")[1].splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.strip().partition("  ") for line in lines)}


def test_without_a_source_perplexity_alone_is_measured() -> None:
    said = rows(run(nano(), "--quality", "--windows", 1))
    assert 1 < float(said["perplexity"].split()[0]) < 1e5
    assert said["measured on"] == "Python's help topics: 255 tokens in 1 windows of 512"
    assert "--source" in said["divergence"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("The capital of France is Paris, one two three. " * 200)
    return path


@pytest.mark.parametrize("how", ["asked for", "at hand"])
def test_with_its_source_the_divergence_is_too(
    how: str, text: Path, tmp_path: Path, tiny_hf_folder: FolderFactory, tiny_exported_folder: FolderFactory
) -> None:
    source, folder = tiny_hf_folder("llama"), tmp_path / "model"
    shutil.copytree(tiny_exported_folder("llama"), folder)
    if how == "at hand":
        facts = read_model_folder(folder).manifest.model_copy(update={"source": str(source)})
        write_manifest(facts, folder / "agentkv.json")
    options = ["--source", source] if how == "asked for" else []
    said = rows(run(folder, "--quality", "--text", text, "--windows", 1, *options))
    assert said["source"] == str(source)
    assert said["divergence from it"] == "KL 0.0000 nats per token, 99th percentile 0.000"
    assert said["same best token"].endswith("%")
    assert float(said["same best token"][:-1]) > 99


def short(tmp_path: Path) -> list[object]:
    (tmp_path / "short").write_text("few words")
    return ["--text", tmp_path / "short"]


def latin(tmp_path: Path) -> list[object]:
    (tmp_path / "latin").write_bytes(b"\xe9" * 5000)
    return ["--text", tmp_path / "latin"]


def few_positions(tmp_path: Path) -> list[object]:
    facts = read_model_folder(tmp_path / "model").manifest.model_copy(update={"max_positions": 100})
    write_manifest(facts, tmp_path / "model" / "agentkv.json")
    return []


def no_tokenizer(tmp_path: Path) -> list[object]:
    (tmp_path / "model" / "tokenizer.json").unlink()
    return []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (short, "give a longer text"),
        (latin, "not UTF-8 text"),
        (lambda tmp_path: ["--text", tmp_path / "nowhere"], "No such file"),
        (lambda tmp_path: ["--text", tmp_path], "cannot be read"),
        (lambda tmp_path: ["--source", tmp_path / "nowhere"], "no such folder"),
        (few_positions, "knows 100 positions"),
        (no_tokenizer, "no tokenizer.json"),
    ],
)
def test_what_cannot_be_measured_is_one_line(make: Any, message: str, tmp_path: Path) -> None:
    shutil.copytree(nano(), tmp_path / "model")
    done = run(tmp_path / "model", "--quality", *make(tmp_path))
    assert done.exit_code == 1
    assert done.output.startswith("error: ")
    assert message in done.output
    assert len(done.output.splitlines()) == 1


@pytest.mark.parametrize("options", [["--text", "x"], ["--source", "x"], ["--all"], ["--quality", "--windows", "0"]])
def test_options_that_mean_nothing_are_usage_errors(options: list[str]) -> None:
    assert run(nano(), *options).exit_code == 2
