"""Which files one token passes through, recorded in a process of its own and held to a list: a file that joins it is
added there, and to the count that may only fall."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .way_of_one_token import WAYS

ROOT = Path(__file__).resolve().parent.parent
LISTED = ROOT / "tests" / "data" / "way_of_one_token.txt"
MOST = {"one token of generate": 24, "one token of a streamed chat completion": 66}

SLOW = {"_aio/scope.py", "_engine/watchdog.py"}  # entered where the step loop's thread keeps somebody waiting


def read(text: str) -> dict[str, set[str]]:
    ways: dict[str, set[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith(" "):
            ways[name].add(line.strip())
        else:
            name = line.rstrip(":")
            ways[name] = set()
    return ways


@pytest.fixture(scope="module")
def recorded() -> dict[str, set[str]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.way_of_one_token"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return read(done.stdout)


@pytest.mark.parametrize("way", WAYS)
def test_the_way_is_as_listed(recorded: dict[str, set[str]], way: str) -> None:
    listed = read(LISTED.read_text(encoding="utf-8"))[way]
    assert recorded[way] ^ listed <= SLOW
    assert len(listed) <= MOST[way]
