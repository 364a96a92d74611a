"""Safetensors files as they are mapped: what they hold, and what is said of damaged and hostile ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.hf.tensors import open_tensors
from safetensors.torch import save_file

W = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def write(place: Path, header: Any, data: bytes = bytes(24), length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file = struct.pack("<Q", len(text) if length is None else length) + text + data
    (place / "model.safetensors").write_bytes(file)
    return place


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_numbers_are_those_that_were_saved(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 8).to(dtype), "b": torch.randn(5).to(dtype), "c": torch.zeros(0, 4).to(dtype)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = open_tensors(tmp_path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name].floats(), tensor.float().numpy())
        assert found[name].numbers().shape == tuple(tensor.shape)


def test_a_folder_without_such_files_has_none(tmp_path: Path) -> None:
    assert open_tensors(tmp_path) == {}


DAMAGED: list[tuple[Callable[[Path], Path], str]] = [
    (lambda place: write(place, {"w": W}, bytes(20)), "its tensors end at"),
    (lambda place: write(place, {"w": W}, bytes(28)), "its tensors end at"),
    (lambda place: write(place, {"w": W}, length=1 << 62), "a header of"),
    (lambda place: write(place, {"w": W}, length=10_000), "a header of"),
    (lambda place: write(place, {"w": W}, length=5), "no JSON"),
    (lambda place: write(place, b"[" * 5000), "no JSON"),
    (lambda place: write(place, b"[]"), "no JSON object"),
    (lambda place: write(place, b"\xff\xfe{}"), "no JSON"),
    (lambda place: write(place, b'{"w": %s, "w": %s}' % ((json.dumps(W).encode(),) * 2)), "has w twice"),
    (lambda place: write(place, {"w": 3}), "does not say what w is"),
    (lambda place: write(place, {"w": W | {"shape": [-2, -3]}}), "does not say what w is"),
    (lambda place: write(place, {"w": W | {"shape": [True, 6]}}), "does not say what w is"),
    (lambda place: write(place, {"w": W | {"shape": [1] * 40}}), "does not say what w is"),
    (lambda place: write(place, {"w": W | {"shape": [1 << 61, 1 << 61]}}), "has 24 bytes for"),
    (lambda place: write(place, {"w": W | {"shape": [2, 4]}}), "has 24 bytes for 8 numbers of F32"),
    (lambda place: write(place, {"w": W | {"data_offsets": [24, 0]}}), "bytes for 6 numbers"),
    (lambda place: write(place, {"w": W | {"dtype": "I8", "data_offsets": [24, 0]}}), "ends before it begins"),
    (lambda place: write(place, {"w": W | {"data_offsets": [8, 32]}}), "overlap, or leave room"),
    (lambda place: write(place, {"w": W, "v": W}), "overlap, or leave room"),
]


@pytest.mark.parametrize(("make", "why"), DAMAGED, ids=[f"{i}-{why[:20]}" for i, (_, why) in enumerate(DAMAGED)])
def test_a_damaged_file_is_refused_by_name(make: Callable[[Path], Path], why: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=why) as caught:
        open_tensors(make(tmp_path))
    assert "model.safetensors" in str(caught.value)


@pytest.mark.parametrize("size", [0, 3, 8, 11, 60])
def test_a_file_that_was_cut_anywhere_is_refused(size: int, tmp_path: Path) -> None:
    place = write(tmp_path, {"w": W})
    path = place / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ExportError, match="damaged"):
        open_tensors(place)


def test_other_dtypes_are_said_to_be_quantised(tmp_path: Path) -> None:
    place = write(tmp_path, {"w": {"dtype": "F8_E4M3", "shape": [24], "data_offsets": [0, 24]}})
    with pytest.raises(UnsupportedModelError, match="stored as F8_E4M3"):
        open_tensors(place)["w"].numbers()


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    save_file({"w": torch.tensor([1.0, torch.nan])}, tmp_path / "model.safetensors")
    with pytest.raises(ExportError, match="w holds infinities or NaN"):
        open_tensors(tmp_path)["w"].floats()


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for i in (1, 2):
        save_file({"w": torch.ones(1), f"v{i}": torch.ones(1)}, tmp_path / f"model-0000{i}-of-00002.safetensors")
    places = {f"v{i}": f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(ExportError, match=r"w is in model-00001-of-00002\.safetensors, too"):
        open_tensors(tmp_path)
