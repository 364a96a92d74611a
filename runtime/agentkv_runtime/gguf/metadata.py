"""The key/value pairs at the start of a GGUF file.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO

from agentkv_runtime.errors import GGUFError

__all__ = ["read_metadata"]

_VERSIONS = (2, 3)
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))  # types of values, as `struct`
_STRING, _ARRAY = 8, 9


def read_metadata(path: Path) -> dict[str, Any]:
    """Keys and values: numbers, bools, strings, and lists of one of those. Raises GGUFError."""
    try:
        with path.open("rb") as file:
            return _Reader(path, file).metadata()
    except OSError as error:
        raise _unreadable(path, f"{error.strerror or error}") from error


class _Reader:
    """Reads from the start of a file to the end of its key/value pairs."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._left = os.fstat(file.fileno()).st_size
        self._place = "its header"

    def metadata(self) -> dict[str, Any]:
        self._check_header()
        _tensors, pairs = self._number("Q"), self._number("Q")
        metadata: dict[str, Any] = {}
        for i in range(pairs):
            self._place = f"key {i + 1} of {pairs}"
            key = self._string()
            self._place = key
            if key in metadata:
                raise self._damaged("is there twice")
            metadata[key] = self._value()
        return metadata

    def _check_header(self) -> None:
        magic = self._take(4)
        if magic != b"GGUF":
            raise _unreadable(self._path, f"it begins with {magic!r} instead of b'GGUF'")
        version: int = self._number("I")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            why = "is written for big-endian machines" if swapped in _VERSIONS else f"is of GGUF version {version}"
            raise _unreadable(self._path, f"it {why}, not 2 or 3 and little-endian. Convert the model again")

    def _value(self) -> Any:
        kind: int = self._number("I")
        if kind != _ARRAY:
            return self._string() if kind == _STRING else self._number(self._format(kind))
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        number = self._format(kind)
        return list(struct.unpack(f"<{count}{number}", self._take(count * struct.calcsize(number))))

    def _format(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise self._damaged(f"has a value of type {kind}, which GGUF does not define there")
        return _NUMBERS[kind]

    def _number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self._take(struct.calcsize(kind)))[0]

    def _string(self) -> str:
        data = self._take(self._number("Q"))
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self._damaged(f"holds a string that is no UTF-8 ({data[:20]!r})") from error

    def _take(self, count: int) -> bytes:
        data = self._file.read(count) if count <= self._left else b""
        if len(data) < count:
            raise self._damaged(f"needs {count} more bytes, and {self._left} are left")
        self._left -= count
        return data

    def _damaged(self, why: str) -> GGUFError:
        return _unreadable(self._path, f"cut or damaged: {self._place} {why}. Download it again")


def _unreadable(path: Path, why: str) -> GGUFError:
    return GGUFError(f"{path}: cannot be read as a GGUF file: {why}")
