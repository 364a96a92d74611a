"""`make mutants` breaks a module in one place at a time."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import flaky, mutants, quick, times
from tests.mutants import some

CHANGES = {
    "a < b": "a <= b",
    "a is None": "a is not None",
    "a in b": "a not in b",
    "a and b": "a or b",
    "a - b": "a + b",
    "f(True)": "f(False)",
    "x = 3": "x = 4",
    "if a:\n    b": "if not a:\n    b",
    "f()": "pass",
}
KEPT = ["raise ValueError(a + 1)", "@dataclass(slots=True)\nclass A:\n    x: int", "x = f()"]


@pytest.mark.parametrize(("source", "other"), CHANGES.items())
def test_small_changes(tmp_path: Path, source: str, other: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert other in [mutant.source for mutant in some(path, 9, random.Random(0))]


@pytest.mark.parametrize("source", KEPT)
def test_what_is_left_as_it_is(tmp_path: Path, source: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert list(some(path, 9, random.Random(0))) == []


@pytest.mark.parametrize(
    ("main", "arguments", "said"),
    [
        (mutants.main, [], "make mutants MUTANTS='agentkv/_engine/loop.py'"),
        (mutants.main, ["agentkv/nothing.py"], "is no module of agentkv/"),
        (mutants.main, ["--count", "0", "agentkv/overflow.py"], "at least 1"),
        (mutants.main, ["tests/run.py"], "is no module of agentkv/"),
        (mutants.main, [os.__file__], "is no module of agentkv/"),
        (flaky.main, ["--only", "onecore"], '"one core"'),
        (flaky.main, ["-n", "0"], "at least 1"),
        (flaky.main, ["-w", "0"], "at least 1"),
        (flaky.main, ["--", "tests/nothing"], "there is no tests/nothing"),
        (quick.main, ["--since", "nothing"], "a commit or a branch"),
        (times.main, ["build/times", "--rows", "0"], "at least 1"),
    ],
)
def test_arguments_that_are_wrong(
    main: Callable[[], object],
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["make", *arguments])
    with pytest.raises(SystemExit):
        main()
    assert said in capsys.readouterr().err
