"""`make quick` finds the tests that lie nearest to a change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import quick
from tests.quick import ROOT, choose, mirror, nearest

CHANGES = [
    ("agentkv/output/json_schema.py", "tests/agentkv/output/test_json_schema.py"),
    ("agentkv/serve/http/openapi.py", "tests/agentkv/serve/test_openapi.py"),
    ("runtime/agentkv_runtime/gguf/tokenizer.py", "tests/runtime/sources/test_gguf.py"),
    ("tests/limits.py", "tests/test_limits.py"),
    ("cpp/core/cells.h", "tests/integration/test_bits.py"),
    ("docs/agents.md", "tests/docs/test_pages.py"),
]


@pytest.mark.parametrize(("changed", "test"), CHANGES)
def test_the_tests_of_a_change_come_early(changed: str, test: str) -> None:
    assert test in nearest([ROOT / changed])[:24]


def test_a_test_that_changed_is_the_first() -> None:
    changed = ["agentkv/output/json_schema.py", "tests/test_readme.py"]
    assert nearest(map(ROOT.joinpath, changed))[0] == "tests/test_readme.py"


def test_what_nothing_imports_breaks_nothing() -> None:
    assert nearest([ROOT / "LICENSE"]) == []


def test_a_file_that_takes_too_long_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = [ROOT / "agentkv/output/json_schema.py"]
    first, second, third = nearest(changed)[:3]
    lines = [
        json.dumps({"kind": "test", "name": f"{name}::test", "wall": wall, "cpu": wall})
        for name, wall in ((first, 1.0), (second, 9.0), (third, 1.0))
    ]
    (tmp_path / "1.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(quick, "TIMES", tmp_path)
    assert choose(changed, 2.0) == [first, third]
    assert choose(changed, 0.5) == [first]  # the nearest is run in any case


@pytest.mark.parametrize(
    ("changed", "folder"),
    [
        ("agentkv/_engine/worker.py", "tests/agentkv/engine"),
        ("agentkv/serve/http/responses.py", "tests/agentkv/serve"),
        ("runtime/agentkv_runtime/text/chat.py", "tests/runtime"),
        ("tests/kinds/mazes.py", "tests/kinds"),
    ],
)
def test_the_folder_that_mirrors_a_file(changed: str, folder: str) -> None:
    assert mirror(ROOT / changed) == ROOT / folder


def test_the_mirrored_folder_is_run_however_far_imports_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "TIMES", tmp_path)  # nothing has run: each file counts the same
    changed = ROOT / "agentkv/agents/turn.py"
    chosen = choose([changed], 60 * quick.UNKNOWN_S)
    assert "tests/agentkv/agents/test_turns.py" in chosen
    mirrored = [name for name in chosen if (ROOT / name).parent == mirror(changed)]
    assert mirrored == chosen[: len(mirrored)]  # the first to run
    assert len(chosen) - len(mirrored) >= 30  # half of the time is for others


@pytest.mark.parametrize("folder", ["clients", "vllm"])
def test_what_needs_other_programs_says_what_runs_it(folder: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTKV_", "PYTEST_"))}
    named = [str(path) for path in sorted((ROOT / "tests" / folder).glob("test_*.py"))]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", *named]
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
    assert f"`make test-{folder}` runs it" in ended.stdout


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ([], "Nothing has changed since HEAD"),
        (["LICENSE"], "No test lies near"),
        (["cpp/core/cells.h"], "`make ctest`"),
        (["agentkv/output/regex.py"], "Changed: agentkv/output/regex.py\n"),
    ],
)
def test_what_it_says_first(
    changed: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quick, "changes", lambda since: [ROOT / name for name in changed])
    monkeypatch.setattr("sys.argv", ["quick", "--list"])
    assert quick.main() == 0
    assert said in capsys.readouterr().out
