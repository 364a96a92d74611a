"""Memory-mapped tensors of safetensors files. Imports no torch.

The format: https://github.com/huggingface/safetensors. Its numpy reader knows no bfloat16, so the header is read here.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.hf.weight_files import weight_files
from agentkv_runtime.printable import printable
from agentkv_runtime.small_files import MOST_BYTES, open_regular

__all__ = ["DTYPES", "Tensor", "open_tensors"]

_DIMENSIONS = 8
DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(np.uint16),
}
"""Dtypes of unquantised weights, by the names of safetensors."""


@dataclass(frozen=True)
class Tensor:
    """Place, dtype and shape of a tensor in a file."""

    name: str
    path: Path
    dtype: str
    """Dtype, as named in safetensors."""
    shape: tuple[int, ...]
    begin: int
    """Offset in the file, in bytes."""

    def numbers(self) -> npt.NDArray[Any]:
        """The values as a read-only view of the mapped file: float32, float16, or the bits of bfloat16 as uint16.

        Raises UnsupportedModelError for other dtypes, ExportError for a file that changed.
        """
        if self.dtype not in DTYPES:
            raise UnsupportedModelError(
                f"{self.path}: {printable(self.name)} is stored as {printable(self.dtype)}: the checkpoint is "
                "quantised. Export the model that it was made from"
            )
        if math.prod(self.shape) == 0:
            return np.zeros(self.shape, DTYPES[self.dtype])
        try:
            mapped: npt.NDArray[Any] = np.memmap(self.path, DTYPES[self.dtype], "r", self.begin, self.shape)
        except ValueError as error:  # shorter than it was
            raise ExportError(f"{self.path}: changed while it was read: {error}. Export it again") from error
        return mapped.view(np.ndarray)

    def floats(self) -> npt.NDArray[np.float32]:
        """The values as float32. Raises as `numbers` does, and ExportError for values that are not finite."""
        numbers = self.numbers()
        if numbers.dtype == np.uint16:
            floats = (numbers.astype(np.uint32) << 16).view(np.float32)
        else:
            floats = numbers.astype(np.float32)
        if not np.isfinite(floats).all():
            raise ExportError(
                f"{self.path}: {printable(self.name)} holds infinities or NaN: its file is broken. Download it again"
            )
        return floats


def open_tensors(folder: Path) -> dict[str, Tensor]:
    """Reads and checks the headers of a folder's safetensors files; returns the tensors by name, none without files.

    Raises ExportError for an index or a file that is damaged, and for a tensor that is in two files.
    """
    found: dict[str, Tensor] = {}
    for path in weight_files(folder):
        for tensor in _tensors(path):
            if tensor.name in found:
                raise ExportError(
                    f"{path}: {printable(tensor.name)} is in {found[tensor.name].path.name}, too. Download the whole "
                    "model"
                )
            found[tensor.name] = tensor
    return found


def _tensors(path: Path) -> Iterator[Tensor]:
    header, start, size = _header(path)
    spans: list[tuple[int, int]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        tensor, end = _tensor(path, name, entry, start)
        spans.append((tensor.begin, end))
        yield tensor
    at = start
    for begin, end in sorted(spans):
        if begin != at:
            raise _damaged(path, "its tensors overlap, or leave room between them")
        at = end
    if at != size:
        raise _damaged(path, f"it has {size} bytes, and its tensors end at {at}")


def _header(path: Path) -> tuple[dict[str, Any], int, int]:
    """The header, the offset of the first tensor, and the size of the file."""
    with open_regular(path, ExportError) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MOST_BYTES):
            raise _damaged(path, f"a header of {length} bytes in a file of {size}")
        text = file.read(length)
    try:
        header = json.loads(text, object_pairs_hook=lambda pairs: _once(path, pairs))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is no JSON: {printable(str(error)[:80])}") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no JSON object")
    return header, 8 + length, size


def _once(path: Path, pairs: Collection[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _damaged(path, f"its header has {printable(name[:80])} twice")
        found[name] = value
    return found


def _tensor(path: Path, name: str, entry: Any, start: int) -> tuple[Tensor, int]:
    """A tensor, and the offset of its end."""
    said = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (said.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not (isinstance(dtype, str) and _are_sizes(shape, range(_DIMENSIONS + 1)) and _are_sizes(offsets, (2,))):
        raise _damaged(path, f"its header does not say what {printable(name[:80])} is")
    assert isinstance(shape, list)
    assert isinstance(offsets, list)
    begin, end = offsets
    count = math.prod(shape)
    if dtype in DTYPES and end - begin != count * DTYPES[dtype].itemsize:
        raise _damaged(path, f"{printable(name[:80])} has {end - begin} bytes for {count} numbers of {dtype}")
    if end < begin:
        raise _damaged(path, f"{printable(name[:80])} ends before it begins")
    return Tensor(name, path, dtype, tuple(shape), start + begin), start + end


def _are_sizes(value: object, lengths: Collection[int]) -> bool:
    return (
        isinstance(value, list)
        and len(value) in lengths
        and all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 1 << 62 for each in value)
    )


def _damaged(path: Path, what: str) -> ExportError:
    return ExportError(f"{path}: damaged: {what}. Download it again")
