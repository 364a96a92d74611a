"""Safetensors files that are written in slices and checked when they are read."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from agentkv_runtime.errors import TensorFileError
from agentkv_runtime.tensor_file import TensorFile, TensorSpec, TensorWriter

SPECS = [
    TensorSpec("rows", "F16", (10, 4, 2)),
    TensorSpec("none", "U8", (0,)),
    TensorSpec("narrow", "BF16", (3, 2)),
    TensorSpec("tokens", "I32", (5,)),
]


def content(spec: TensorSpec) -> np.ndarray:
    return np.random.default_rng(len(spec.name)).integers(0, 60, spec.nbytes, dtype=np.uint8)


def write(path: Path) -> bytes:
    writer = TensorWriter(path, SPECS, {"format": "test", "model": "näno"})
    for spec in reversed(SPECS):
        data = content(spec)
        for first in range(0, len(data), 7):
            writer.append(spec.name, data[first : first + 7])
    writer.finish()
    assert writer.nbytes == path.stat().st_size
    return path.read_bytes()


def read(path: Path) -> dict[str, bytes]:
    with TensorFile(path) as file:
        return {name: file.whole(name).tobytes() for name in file.tensors}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path)
    with TensorFile(path) as file:
        assert list(file.tensors.values()) == SPECS
        assert file.metadata["model"] == "näno"
        parts = [file.take("rows", 40) for _ in range(4)]
        assert b"".join(part.tobytes() for part in parts) == content(SPECS[0]).tobytes()
        assert [file.whole("tokens").tobytes() for _ in range(2)] == [content(SPECS[3]).tobytes()] * 2
    assert read(path) == {spec.name: content(spec).tobytes() for spec in SPECS}


def test_without_names_of_open_files_it_is_read_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write(path)
    monkeypatch.setattr("agentkv_runtime.tensor_file._OPEN_FILES", str(tmp_path / "none"))
    assert read(path) == {spec.name: content(spec).tobytes() for spec in SPECS}


def test_others_read_it_as_safetensors(tmp_path: Path) -> None:
    write(tmp_path / "file")
    with safetensors.safe_open(tmp_path / "file", "numpy") as opened:
        np.testing.assert_array_equal(opened.get_tensor("rows"), content(SPECS[0]).view(np.float16).reshape(10, 4, 2))
        np.testing.assert_array_equal(opened.get_tensor("tokens"), content(SPECS[3]).view(np.int32))


def test_half_a_file_is_not_finished(tmp_path: Path) -> None:
    writer = TensorWriter(tmp_path / "file", SPECS, {})
    writer.append("rows", content(SPECS[0]))
    with pytest.raises(ValueError, match="more bytes than tensor rows has"):
        writer.append("rows", np.zeros(1, np.uint8))
    with pytest.raises(ValueError, match="bytes of narrow are missing"):
        writer.finish()
    writer.discard()
    assert os.listdir(tmp_path) == []


def damages(whole: bytes, count: int, seed: int) -> list[bytes]:
    """Flipped bits and bytes, cuts, and bytes too many."""
    draw = random.Random(seed)
    damaged = []
    for _ in range(count):
        data = bytearray(whole)
        kind = draw.randrange(8)
        if kind == 0:
            data = data[: draw.randrange(len(data))]
        elif kind == 1:
            data += bytes(draw.randrange(1, 9))
        else:
            for _ in range(draw.choice((1, 1, 1, 2, 5))):
                at = draw.randrange(len(data)) if draw.random() < 0.5 else draw.randrange(min(len(data), 1600))
                data[at] ^= 1 << draw.randrange(8) if draw.random() < 0.7 else draw.randrange(1, 256)
        damaged.append(bytes(data))
    return damaged


def check_damages(path: Path, count: int, seed: int) -> int:
    """Each is an error, or changes nothing. Returns how many were errors."""
    whole = write(path)
    before = read(path)
    errors = 0
    for data in damages(whole, count, seed):
        path.write_bytes(data)
        try:
            assert read(path) == before
        except TensorFileError:
            errors += 1
    return errors


def test_damage_is_found(tmp_path: Path) -> None:
    assert check_damages(tmp_path / "file", 400, 1) > 380


@pytest.mark.soak
def test_much_damage_is_found(tmp_path: Path) -> None:
    print(check_damages(tmp_path / "file", 10_000, 2), "of 10,000 damaged files refused")


def header(entries: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


U8 = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
HOSTILE = {
    "nothing": b"",
    "short": b"1234567",
    "a huge header": header({}, length=2**63),
    "a header beyond the end": header({}, length=100),
    "a header of -1": header({}, length=2**64 - 1),
    "no JSON": header(b"{" * 50),
    "deep JSON": header(b"[" * 100_000),
    "deep metadata": header(b'{"__metadata__":' + b'{"a":' * 5000 + b"1" + b"}" * 5001),
    "no object": header([1, 2]),
    "not UTF-8": header(b'{"\xff": 1}'),
    "overlapping": header({"a": U8, "b": U8}, b"1234"),
    "out of range": header({"a": {**U8, "data_offsets": [0, 400]}}, b"1234"),
    "negative offsets": header({"a": {**U8, "data_offsets": [-4, 0]}}, b"1234"),
    "backward offsets": header({"a": {**U8, "data_offsets": [4, 0]}}, b"1234"),
    "a hole": header({"a": U8, "b": {**U8, "data_offsets": [8, 12]}}, b"123412341234"),
    "a wrong shape": header({"a": {**U8, "shape": [5]}}, b"1234"),
    "a negative shape": header({"a": {**U8, "shape": [-4]}}, b"1234"),
    "a shape that overflows": header({"a": {**U8, "shape": [2**33, 2**33]}}, b"1234"),
    "an unknown dtype": header({"a": {**U8, "dtype": "X9"}}, b"1234"),
    "a dtype that we do not write": header(
        {"a": {**U8, "dtype": "F64", "shape": [], "data_offsets": [0, 8]}}, b"1" * 8
    ),
    "numbers in the metadata": header({"__metadata__": {"a": 1}, "a": U8}, b"1234"),
    "no digest": header({"__metadata__": {"format": "test"}, "a": U8}, b"1234"),
    "a file of others": safetensors.numpy.save({"a": np.zeros(4, np.float32)}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(TensorFileError, match="damaged, or no file of agentkv"):
        TensorFile(path)


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "folder", "loop", "zero", "missing", "missing/below"):
        with pytest.raises(TensorFileError, match="cannot be read"):
            TensorFile(tmp_path / name)
