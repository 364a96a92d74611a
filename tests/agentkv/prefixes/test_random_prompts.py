"""Random prompts of several processes over one folder: no differing bit, no lost cell, never an error."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import anyio
import pytest

from ..books import books_are_held  # noqa: F401 - a fixture
from .playing import MOST_BYTES, play

ROOT = Path(__file__).resolve().parents[3]


def in_processes(folder: Path, seeds: range, steps: int) -> Counter[str]:
    """So many steps of a process for each seed, all at once."""
    commands = [
        [sys.executable, "-m", "tests.agentkv.prefixes.playing", str(folder), str(n), str(steps)] for n in seeds
    ]
    players = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for command in commands]
    told = [player.communicate()[0] for player in players]
    assert [player.returncode for player in players] == [0] * len(players)
    return sum((Counter(json.loads(each)) for each in told), Counter())


def check(folder: Path, counts: Counter[str]) -> None:
    print(f"\n{dict(sorted(counts.items()))}")
    assert min(counts[what] for what in ("hits", "written", "damaged", "restart")) > 0
    left = sum(path.stat().st_size for path in folder.rglob("*.prefix"))
    assert left <= MOST_BYTES


@pytest.mark.usefixtures("failing_caches", "books_are_held")
def test_prompts_say_what_an_oracle_says(tmp_path: Path) -> None:
    check(tmp_path, anyio.run(play, tmp_path, 1, 150))


def test_so_they_do_beside_other_processes(tmp_path: Path) -> None:
    check(tmp_path, in_processes(tmp_path, range(10, 13), 60))


@pytest.mark.soak
@pytest.mark.usefixtures("failing_caches", "books_are_held")
def test_prompts_say_what_an_oracle_says_for_long(tmp_path: Path, soak_count: int) -> None:
    check(tmp_path, anyio.run(play, tmp_path, 2, soak_count // 4))


@pytest.mark.soak
def test_so_they_do_beside_other_processes_for_long(tmp_path: Path, soak_count: int) -> None:
    check(tmp_path, in_processes(tmp_path, range(20, 24), soak_count // 8))
