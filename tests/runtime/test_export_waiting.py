"""Threads that wait asleep."""

from __future__ import annotations

import os

import pytest
from agentkv_runtime.export.waiting import wait_asleep


@pytest.mark.parametrize(("before", "after"), [(None, "PASSIVE"), ("active", "active")])
def test_what_the_user_says_stays(monkeypatch: pytest.MonkeyPatch, before: str | None, after: str) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", before or "")
    if before is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    wait_asleep()
    assert os.environ["OMP_WAIT_POLICY"] == after
