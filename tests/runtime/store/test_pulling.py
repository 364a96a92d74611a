"""What a model with an adapter is called."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentkv_runtime.store.content import content_digest
from agentkv_runtime.store.entries import Entry, named
from agentkv_runtime.store.making import options_for
from agentkv_runtime.store.pulling import name_with_adapter

MODEL = "owner/tiny"


def adapter(folder: Path, config: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(config)
    return folder


def keep(called: str, merged: Path) -> None:
    """An export as `pull` leaves it, but for its files."""
    digest = content_digest(merged)
    assert digest is not None
    entry = Entry(
        key=digest[:32], folder="tiny", options=options_for(quant="none"), names={called: 1.0}, adapter=digest
    )
    entry.path.mkdir(parents=True)
    entry.write(entry.place)


def test_adapters_in_folders_of_one_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTKV_HOME", str(tmp_path / "home"))
    first, second = adapter(tmp_path / "a" / "lora", "{}"), adapter(tmp_path / "b" / "lora", '{"r": 8}')
    assert name_with_adapter(MODEL, first) == name_with_adapter(MODEL, second) == "owner/tiny+lora"
    keep("owner/tiny+lora", first)
    other = name_with_adapter(MODEL, second)
    assert other == f"owner/tiny+lora-{(content_digest(second) or '')[:8]}"
    keep(other, second)
    for _ in range(2):  # and it stays so
        assert name_with_adapter(MODEL, first) == "owner/tiny+lora"
        assert name_with_adapter(MODEL, second) == other
    assert [entry.adapter for entry in named("owner/tiny+lora")] == [content_digest(first)]
