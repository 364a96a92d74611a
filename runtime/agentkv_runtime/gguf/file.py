"""GGUF files with their tensors, mapped: of one file, or of several parts.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agentkv_runtime.errors import GGUFError
from agentkv_runtime.gguf.block_types import TYPES
from agentkv_runtime.gguf.metadata import Cursor, map_file, read_pairs
from agentkv_runtime.gguf.parts import part_paths

__all__ = ["GGUFFile", "Tensor", "open_file"]

_DIMENSIONS = 4
_ALIGNMENT = 32  # where a file names none


@dataclass(frozen=True)
class Tensor:
    """A tensor in its blocks, as stored in the file."""

    name: str
    type: int
    """GGUF's id of the block type; see `block_types`."""
    shape: tuple[int, ...]
    """Shape in numbers, outermost dimension first."""
    data: npt.NDArray[np.uint8]
    """Bytes `[..., row_bytes]` for a shape of `[..., inputs]`: a read-only view of the mapped file."""


@dataclass(frozen=True)
class GGUFFile:
    """A model: metadata and tensors of a file and all its parts."""

    path: Path
    parts: tuple[Path, ...]
    """Paths of all parts, in order."""
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


def open_file(path: Path) -> GGUFFile:
    """Opens a file, and if it is one of several parts, all of them. Reads no tensor.

    Raises GGUFError for a part that is truncated, damaged or missing.
    """
    opened = _open_part(path)
    count = _whole_number(path, opened.metadata, "split.count", 1)
    if count <= 1:
        return opened
    paths = _parts(path, count)
    files = [opened if each == path else _open_part(each) for each in paths]
    for i, file in enumerate(files):
        said = (_whole_number(file.path, file.metadata, key, -1) for key in ("split.no", "split.count"))
        if tuple(said) != (i, count):
            raise GGUFError(f"{file.path}: is not part {i + 1} of {count}, as it is called. Download all parts again")
    tensors = {name: tensor for file in files for name, tensor in file.tensors.items()}
    held = sum(len(file.tensors) for file in files)
    stated = _whole_number(path, files[0].metadata, "split.tensors.count", held)
    if not len(tensors) == held == stated:
        raise GGUFError(
            f"{path}: its {count} parts hold {held} tensors of {len(tensors)} names, and must hold {stated}. Download "
            "all parts again"
        )
    return GGUFFile(path, tuple(paths), files[0].metadata, tensors)


def _parts(path: Path, count: int) -> list[Path]:
    paths = part_paths(path)
    if len(paths) != count:
        raise GGUFError(
            f"{path}: is one of {count} parts, which are found by their names. Call it as it was: "
            f"NAME-00001-of-{count:05}.gguf and so on"
        )
    for part in paths:
        if not part.is_file():
            raise GGUFError(f"{path}: is one of {count} parts, and {part.name} does not lie beside it. Download it")
    return paths


def _open_part(path: Path) -> GGUFFile:
    cursor = Cursor(path, map_file(path))
    metadata, count = read_pairs(cursor)
    alignment = _whole_number(path, metadata, "general.alignment", _ALIGNMENT)
    if alignment < 1 or alignment & (alignment - 1):
        raise GGUFError(f"{path}: general.alignment is {alignment}, and must be a power of two. Convert it again")
    listed = _listed(cursor, count)
    begin = -(-cursor.at // alignment) * alignment
    for entry in listed:
        entry.check_place(cursor, begin, alignment)
    _check_overlaps(path, listed)
    return GGUFFile(path, (path,), metadata, {each.name: each.tensor(cursor, begin) for each in listed})


@dataclass(frozen=True)
class _Entry:
    """A tensor's entry in the header of a file."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def row_bytes(self) -> int:
        _, numbers, size = TYPES[self.type]
        return self.shape[-1] // numbers * size

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape[:-1]) * self.row_bytes

    def check_place(self, cursor: Cursor, begin: int, alignment: int) -> None:
        """Raises GGUFError unless the tensor is aligned and lies within the file."""
        cursor.place = self.name
        left = max(len(cursor.data) - begin, 0)
        if self.offset % alignment:
            raise cursor.damaged(f"begins at {self.offset}, which is not a multiple of {alignment}")
        if self.offset + self.nbytes > left:
            raise cursor.damaged(f"has {self.nbytes} bytes from {self.offset} on, and {left} are there")

    def tensor(self, cursor: Cursor, begin: int) -> Tensor:
        data = np.frombuffer(cursor.data, np.uint8, self.nbytes, begin + self.offset)
        return Tensor(self.name, self.type, self.shape, data.reshape(*self.shape[:-1], self.row_bytes))


def _listed(cursor: Cursor, count: int) -> list[_Entry]:
    entries: dict[str, _Entry] = {}
    for i in range(count):
        cursor.place = f"tensor {i + 1} of {count}"
        name = cursor.name()
        if name in entries:
            raise cursor.damaged("is there twice")
        entries[name] = _entry(cursor, name)
    return list(entries.values())


def _entry(cursor: Cursor, name: str) -> _Entry:
    dimensions = cursor.u32()
    if not 1 <= dimensions <= _DIMENSIONS:
        raise cursor.damaged(f"has {dimensions} dimensions, and must have 1 to {_DIMENSIONS}")
    shape = cursor.numbers("Q", dimensions)[::-1]  # files count from the innermost dimension
    if 0 in shape:
        raise cursor.damaged(f"has the shape {list(shape)}, without any number")
    of_type, offset = cursor.u32(), cursor.u64()
    if of_type not in TYPES:
        raise cursor.damaged(f"is of type {of_type}, which is not known")
    known = TYPES[of_type]
    if shape[-1] % known.numbers:
        raise cursor.damaged(
            f"is {known.name} with rows of {shape[-1]} numbers, which are no whole blocks of {known.numbers}"
        )
    return _Entry(name, shape, of_type, offset)


def _check_overlaps(path: Path, listed: list[_Entry]) -> None:
    ordered = sorted(listed, key=lambda entry: entry.offset)
    for one, after in pairwise(ordered):
        if one.offset + one.nbytes > after.offset:
            raise GGUFError(
                f"{path}: cannot be read as a GGUF file: cut or damaged: {one.name} and {after.name} lie in the same "
                "bytes. Download it again"
            )


def _whole_number(path: Path, metadata: dict[str, Any], key: str, default: int) -> int:
    value = metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise GGUFError(f"{path}: {key} is {value!r:.40}, and must be a whole number. Convert it again")
    return value
