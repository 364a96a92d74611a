"""What GitHub runs is what anyone runs: each step is a target of the Makefile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def steps() -> Iterator[tuple[str, str]]:
    """File and command of each step that runs one, for each of the targets that a matrix names."""
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            targets = job.get("strategy", {}).get("matrix", {}).get("target", [""])
            for step in job["steps"]:
                for target in targets if "run" in step else ():
                    yield path.name, step["run"].replace("${{ matrix.target }}", target)


@pytest.mark.parametrize(("file", "command"), sorted(set(steps())))
def test_a_step_is_a_target(file: str, command: str) -> None:
    make, *targets = command.split()
    assert make == "make"
    assert set(targets) <= TARGETS
