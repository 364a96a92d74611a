"""Safetensors files as they are read: what they hold, and what is said of damaged and hostile ones."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agentkv_runtime.errors import ExportError
from agentkv_runtime.hf.tensors import open_tensors
from safetensors.torch import save_file

from tests.waiting import TICK

W = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def write(place: Path, header: Any, data: bytes = bytes(24), length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file = struct.pack("<Q", len(text) if length is None else length) + text + data
    (place / "model.safetensors").write_bytes(file)
    return place


def as_floats(numbers: Any) -> Any:
    """float32 of float32, float16, or the bits of bfloat16."""
    return (numbers.astype(np.uint32) << 16).view(np.float32) if numbers.dtype == np.uint16 else numbers.astype("f4")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_numbers_are_those_that_were_saved(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 8).to(dtype), "b": torch.randn(5).to(dtype), "c": torch.zeros(0, 4).to(dtype)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = open_tensors(tmp_path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name].floats(), tensor.float().numpy())
        for rows in (slice(None), slice(1, 3), slice(0, 0), slice(None, None, 2), slice(2, None, 7)):
            np.testing.assert_array_equal(as_floats(found[name][rows]), tensor.float().numpy()[rows])


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
    (lambda place: write(place, {"w": W | {"dtype": "f32"}}), "w is of f32, which is no type of numbers"),
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


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4)


def grown(path: Path) -> None:
    os.truncate(path, path.stat().st_size + 4)


def written_to(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\1\2\3\4")


def replaced(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.write_bytes(path.with_name("other").read_bytes())


@pytest.mark.parametrize("change", [cut, grown, written_to, replaced])
@pytest.mark.parametrize("rows", [slice(None), slice(0, 1), slice(None, None, 2)])
def test_a_file_that_changes_after_its_header_was_read_is_refused(
    change: Callable[[Path], None], rows: slice, tmp_path: Path
) -> None:
    save_file({"w": torch.ones(64, 64)}, tmp_path / "model.safetensors")
    tensor = open_tensors(tmp_path)["w"]
    assert tensor[rows].any()
    time.sleep(TICK)
    change(tmp_path / "model.safetensors")
    with pytest.raises(ExportError, match=r"model\.safetensors: changed while it was exported. Export it again"):
        tensor[rows]


def test_a_file_that_goes_is_refused(tmp_path: Path) -> None:
    save_file({"w": torch.ones(64, 64)}, tmp_path / "model.safetensors")
    tensor = open_tensors(tmp_path)["w"]
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ExportError, match="No such file"):
        tensor.floats()


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
