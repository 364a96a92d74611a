"""Thousands of damaged model folders: opening one ends in an AgentKVError, or the output has the bits that it had."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = 60
BATCH = 500


def open_damaged(folder: Path, count: int) -> Counter[str]:
    """How the opening of `count` damaged copies ended. Processes of their own: none of them may end one."""
    ends: Counter[str] = Counter()
    for first in range(0, count, BATCH):
        last = min(first + BATCH, count)
        done = subprocess.run(
            [sys.executable, "-m", "tests.agentkv.damage", folder, str(first), str(last)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        found = [json.loads(line) for line in done.stdout.splitlines()]
        at = f"seed {first + len(found)}, after {found[-1] if found else None}"
        assert done.returncode == 0, f"{at}: {done.returncode}\n{done.stderr[-4000:]}"
        assert len(found) == last - first
        for each in found:
            assert each["opened"] != "OTHER OUTPUT", each
            ends[each["opened"]] += 1
    return ends


def test_a_sample_of_damaged_folders(eagle_folder: Path) -> None:
    ends = open_damaged(eagle_folder, SAMPLE)
    assert ends.total() == SAMPLE
    assert ends["ModelError"] > SAMPLE // 4
    assert ends["same"] > SAMPLE // 10


@pytest.mark.soak
def test_many_damaged_folders(eagle_folder: Path) -> None:
    print(open_damaged(eagle_folder, int(os.environ.get("AGENTKV_SOAK", "5000"))))
