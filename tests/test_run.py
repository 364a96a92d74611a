"""How many processes share the tests."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests import run


@pytest.mark.parametrize(
    ("cores", "gigabytes", "processes"),
    [(2, 23, 4), (16, 100, 18), (8, 16, 6), (2, 4, 1), (1, 1, 1)],
)
def test_no_more_share_the_tests_than_there_is_memory_for(
    monkeypatch: pytest.MonkeyPatch, cores: int, gigabytes: int, processes: int
) -> None:
    monkeypatch.setattr(run.psutil, "virtual_memory", lambda: SimpleNamespace(available=gigabytes << 30))
    assert run.processes(cores) == processes
    command = run.pytest_command(cores, [])
    assert command[command.index("-n") + 1] == str(processes)
