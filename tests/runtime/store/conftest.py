"""A user's folder in which there is nothing yet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "OLLAMA", "LLAMA", "XDG_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AGENTKV_HOME", str(tmp_path / "agentkv"))
    return tmp_path
