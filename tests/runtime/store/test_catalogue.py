"""The list of short names."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from agentkv_runtime.store.catalogue import POSITIONS, ListedModel, catalogue, listed, nearest
from agentkv_runtime.store.hub import parse_name


@pytest.mark.parametrize("model", catalogue(), ids=lambda model: model.name)
def test_every_entry_is_whole(model: ListedModel) -> None:
    assert re.fullmatch(r"[a-z0-9.-]+:[0-9.]+[mb](-a[0-9]+b)?(-[a-z0-9_]+)?", model.name)
    assert parse_name(str(model.source)) == model.source
    assert model.source.file is not None
    assert model.licence
    assert model.size > 50_000_000
    assert model.tools in ("yes", "no", "not measured")
    assert listed(model.name) == model


def test_names_and_files_stand_once_and_no_family_has_two_usual_sizes() -> None:
    models = catalogue()
    assert len({model.name for model in models}) == len({str(model.source) for model in models}) == len(models)
    assert max(Counter(model.family for model in models if model.usual).values()) == 1
    assert len(models) >= 15


def test_memory_is_the_file_and_the_cells() -> None:
    model = listed("qwen3:0.6b")
    assert model is not None
    assert model.cells == (28, 8, 128)
    assert model.memory - model.size == POSITIONS * 28 * 2 * 8 * 128 * 2


def test_a_family_alone_is_its_usual_size() -> None:
    usual = listed("QWEN3")
    assert usual is not None
    assert (usual.name, usual.usual) == ("qwen3:4b", True)
    assert listed("qwen") is None


def test_the_nearest_names_come_first() -> None:
    assert nearest("qwen3:0.6")[0] == "qwen3:0.6b"
    assert nearest("qwen")[0] == "qwen3"
    assert nearest("Qwen3-0.6B")[0] == "qwen3:0.6b"
    assert nearest("mine", ["Me/Mine-GGUF", "other"])[0] == "Me/Mine-GGUF"
    assert len(nearest("qwen")) <= 4
    assert nearest("zzzz") == []
