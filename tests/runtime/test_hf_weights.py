"""Which files hold a model's weights, and which numbers are weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.hf.load import load_model, stream_model
from agentkv_runtime.hf.weight_files import check_index, weight_files
from agentkv_runtime.hf.weights import FolderWeights, checked_float
from safetensors import safe_open
from safetensors.torch import save_file

from tests.conftest import FolderFactory


def test_other_files_in_the_folder_are_none_of_the_model(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    save_file({"w": torch.zeros(2)}, tmp_path / "model_before.safetensors")
    assert FolderWeights(tmp_path).load("w").tolist() == [1, 1]


def test_shards_are_those_of_the_index(tmp_path: Path) -> None:
    for name in ("model-00001-of-00002", "model-00002-of-00002", "model-00001-of-00003"):
        save_file({name: torch.ones(1)}, tmp_path / f"{name}.safetensors")
    places = {str(i): f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert [path.name for path in weight_files(tmp_path)] == list(places.values())


@pytest.mark.parametrize("places", [{}, [], {"w": "../model.safetensors"}, {"w": "a.st"}, {"w": ".."}, {"w": 3}, None])
@pytest.mark.parametrize("index", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
def test_a_damaged_index_is_refused(tmp_path: Path, index: str, places: object) -> None:
    (tmp_path / index).write_text(json.dumps({"weight_map": places}))
    with pytest.raises(ExportError, match=r"index\.json: names"):
        check_index(tmp_path)


def test_shards_outside_of_the_folder_are_not_loaded(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    source = tmp_path / "model"
    shutil.copytree(tiny_hf_folder("llama", layers=1), source)
    (source / "model.safetensors").rename(tmp_path / "outside.safetensors")
    with safe_open(tmp_path / "outside.safetensors", "pt") as file:
        places = dict.fromkeys(file.keys(), "../outside.safetensors")
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    for load in (stream_model, load_model):
        with pytest.raises(ExportError, match=r"names '\.\./outside\.safetensors', which is no \*\.safetensors"):
            load(source)


def test_codes_are_no_weights() -> None:
    assert checked_float("w", torch.ones(1, dtype=torch.bfloat16)).item() == 1
    with pytest.raises(UnsupportedModelError, match="the checkpoint is quantised"):
        checked_float("w", torch.ones(1).to(torch.float8_e4m3fn))
