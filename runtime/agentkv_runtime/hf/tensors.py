"""Tensors of safetensors files, whose rows are read on demand. Imports no torch.

The format: https://github.com/huggingface/safetensors. Its numpy reader knows no bfloat16, so the header is read here.
Files are not mapped: a mapped file that is truncated meanwhile would end the process.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agentkv_runtime.errors import ExportError
from agentkv_runtime.folder.printable import printable
from agentkv_runtime.folder.small_files import MOST_BYTES, open_regular
from agentkv_runtime.hf.weight_files import weight_files

__all__ = ["DTYPES", "Tensor", "open_tensors", "tensors_of"]

_DIMENSIONS = 8
DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(np.uint16),
}
"""Dtypes of unquantised weights, by the names of safetensors."""
_OTHER_DTYPES = {
    *("BOOL", "C64", "F64", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64"),
    *("F4", "F6_E2M3", "F6_E3M2", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ", "F8_E8M0"),
}


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
    state: tuple[int, ...]
    """State of the file when its header was read, to detect changes."""

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        """Reads rows: float32, float16, or the bits of bfloat16 as uint16. Requires a dtype of `DTYPES`.

        Raises ExportError for a file that changed since its header was read.
        """
        taken = range(self.shape[0])[rows]
        found = np.empty((len(taken), *self.shape[1:]), DTYPES[self.dtype])
        row, at_once = found[:1].nbytes, max(1, len(taken)) if taken.step == 1 else 1
        room = found.reshape(-1).view(np.uint8).data
        with open_regular(self.path, ExportError) as file:
            for i in range(0, len(taken), at_once):
                part = room[i * row : (i + at_once) * row]
                file.seek(self.begin + taken[i] * row)
                if file.readinto(part) != len(part):
                    raise self._changed()
            if _state(file) != self.state:
                raise self._changed()
        return found

    def part(self, name: str, first: int, rows: int) -> Tensor:
        """`rows` rows from `first` on as a tensor of another name. Requires a dtype of `DTYPES`."""
        row = math.prod(self.shape[1:]) * DTYPES[self.dtype].itemsize
        return replace(self, name=name, shape=(rows, *self.shape[1:]), begin=self.begin + first * row)

    def floats(self) -> npt.NDArray[np.float32]:
        """All values as float32. Raises ExportError as reading rows does, and for values that are not finite."""
        numbers = self[:]
        if numbers.dtype == np.uint16:
            floats = (numbers.astype(np.uint32) << 16).view(np.float32)
        else:
            floats = numbers.astype(np.float32)
        if not np.isfinite(floats).all():
            raise ExportError(
                f"{self.path}: {printable(self.name)} holds infinities or NaN: its file is broken. Download it again"
            )
        return floats

    def _changed(self) -> ExportError:
        return ExportError(f"{self.path}: changed while it was exported. Export it again when it is whole")


def open_tensors(folder: Path) -> dict[str, Tensor]:
    """Reads and checks the headers of a folder's safetensors files; returns the tensors by name, none without files.

    Raises ExportError for an index or a file that is damaged, and for a tensor that is in two files.
    """
    found: dict[str, Tensor] = {}
    for path in weight_files(folder):
        for tensor in tensors_of(path):
            if tensor.name in found:
                raise ExportError(
                    f"{path}: {printable(tensor.name)} is in {found[tensor.name].path.name}, too. Download the whole "
                    "model"
                )
            found[tensor.name] = tensor
    return found


def tensors_of(path: Path) -> Iterator[Tensor]:
    """Reads and checks the header of a file. Raises ExportError for a missing or damaged one."""
    header, start, state = _header(path)
    spans: list[tuple[int, int]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        tensor, end = _tensor(path, name, entry, start, state)
        spans.append((tensor.begin, end))
        yield tensor
    at = start
    for begin, end in sorted(spans):
        if begin != at:
            raise _damaged(path, "its tensors overlap, or leave room between them")
        at = end
    if at != (size := state[0]):
        raise _damaged(path, f"it has {size} bytes, and its tensors end at {at}")


def _header(path: Path) -> tuple[dict[str, Any], int, tuple[int, ...]]:
    """The header, the offset of the first tensor, and the state of the file."""
    with open_regular(path, ExportError) as file:
        state = _state(file)
        size = state[0]
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
    return header, 8 + length, state


def _state(file: BufferedReader) -> tuple[int, ...]:
    """Size, time of change, device and inode of an open file."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino


def _once(path: Path, pairs: Collection[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _damaged(path, f"its header has {printable(name[:80])} twice")
        found[name] = value
    return found


def _tensor(path: Path, name: str, entry: Any, start: int, state: tuple[int, ...]) -> tuple[Tensor, int]:
    """A tensor, and the offset of its end."""
    said = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (said.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not (isinstance(dtype, str) and _are_sizes(shape, range(_DIMENSIONS + 1)) and _are_sizes(offsets, (2,))):
        raise _damaged(path, f"its header does not say what {printable(name[:80])} is")
    assert isinstance(shape, list)
    assert isinstance(offsets, list)
    begin, end = offsets
    if dtype not in DTYPES and dtype not in _OTHER_DTYPES:
        raise _damaged(path, f"{printable(name[:80])} is of {printable(dtype[:20])}, which is no type of numbers")
    count = math.prod(shape)
    if dtype in DTYPES and end - begin != count * DTYPES[dtype].itemsize:
        raise _damaged(path, f"{printable(name[:80])} has {end - begin} bytes for {count} numbers of {dtype}")
    if end < begin:
        raise _damaged(path, f"{printable(name[:80])} ends before it begins")
    return Tensor(name, path, dtype, tuple(shape), start + begin, state), start + end


def _are_sizes(value: object, lengths: Collection[int]) -> bool:
    return (
        isinstance(value, list)
        and len(value) in lengths
        and all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 1 << 62 for each in value)
    )


def _damaged(path: Path, what: str) -> ExportError:
    return ExportError(f"{path}: damaged: {what}. Download it again")
