"""`make times` shows what was recorded, and says what to do where nothing was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.quick import ROOT


def times(*arguments: object) -> tuple[int, str]:
    command = [sys.executable, "-m", "tests.times", *map(str, arguments)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return ended.returncode, ended.stdout + ended.stderr


def test_tables_of_what_ran(tmp_path: Path) -> None:
    record = {"kind": "test", "name": "tests/test_a.py::test_b[c]", "wall": 2.0, "cpu": 1.0}
    (tmp_path / "1.jsonl").write_text(json.dumps(record) + "\n")
    status, shown = times(tmp_path, "functions")
    assert status == 0
    assert [line.split() for line in shown.splitlines()][2] == ["1", "1.0", "2.0", "tests/test_a.py::test_b"]


def test_what_cannot_be_shown_is_said(tmp_path: Path) -> None:
    status, said = times(tmp_path)
    assert status == 2
    assert "`make test` does that" in said
    assert "there are: folders, files" in times(tmp_path, "folder")[1]
