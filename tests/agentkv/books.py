"""Owners of sequences and cells, recounted after each step of every Context that a test opens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentkv._engine.worker import EngineWorker


@pytest.fixture
def books_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that do not agree end the step loop: whatever is awaited raises StepFailed, with what does not agree."""

    def then_checked(step: Callable[[EngineWorker], Any]) -> Callable[[EngineWorker], Any]:
        def checked(self: EngineWorker) -> Any:
            report = step(self)
            check = getattr(self.engine, "check_owners", None)  # a server has its own
            if check is not None:
                check()
            return report

        return checked

    for name in ("step", "settle"):
        monkeypatch.setattr(EngineWorker, name, then_checked(getattr(EngineWorker, name)))
