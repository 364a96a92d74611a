"""The key/value pairs at the start of a GGUF file.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
from pathlib import Path
from struct import Struct
from typing import Any

from agentkv_runtime.errors import GGUFError

__all__ = ["Cursor", "map_file", "read_metadata", "read_pairs"]

_VERSIONS = (2, 3)
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))  # types of values, as `struct`
_STRING, _ARRAY = 8, 9
_NAME = 256  # characters; the longest that files have are a quarter of it
_U32, _U64 = Struct("<I"), Struct("<Q")


def read_metadata(path: Path) -> dict[str, Any]:
    """Reads keys and values: numbers, bools, strings, and lists of one of these. Raises GGUFError."""
    return read_pairs(Cursor(path, map_file(path)))[0]


def map_file(path: Path) -> mmap.mmap | bytes:
    """Maps a file read-only. Raises GGUFError."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # of an empty file, which cannot be mapped
        return b""
    except OSError as error:
        raise _unreadable(path, f"{error.strerror or error}") from error


def read_pairs(cursor: Cursor) -> tuple[dict[str, Any], int]:
    """Reads the key/value pairs and the number of tensors; leaves the cursor before the list of tensors."""
    _check_header(cursor)
    tensors, pairs = cursor.u64(), cursor.u64()
    metadata: dict[str, Any] = {}
    for i in range(pairs):
        cursor.place = f"key {i + 1} of {pairs}"
        key = cursor.name()
        if key in metadata:
            raise cursor.damaged("is there twice")
        metadata[key] = _value(cursor)
    return metadata, tensors


class Cursor:
    """Reader of a file's bytes from the start. Methods raise GGUFError beyond the end."""

    def __init__(self, path: Path, data: mmap.mmap | bytes) -> None:
        self.path = path
        self.data = data
        self.at = 0
        """Offset of the next byte."""
        self.place = "its header"
        """Name of the part that is being read, for messages."""

    def take(self, count: int) -> bytes:
        """Reads `count` bytes."""
        begin = self._advance(count)
        return self.data[begin : self.at]

    def u32(self) -> int:
        """Reads a uint32."""
        number: int = _U32.unpack_from(self.data, self._advance(4))[0]
        return number

    def u64(self) -> int:
        """Reads a uint64."""
        number: int = _U64.unpack_from(self.data, self._advance(8))[0]
        return number

    def numbers(self, kind: str, count: int) -> tuple[Any, ...]:
        """Reads `count` numbers of a type of `struct`."""
        size = Struct(f"<{kind}").size
        begin = self._advance(count * size)  # before anything as large is made
        return Struct(f"<{count}{kind}").unpack_from(self.data, begin)

    def string(self) -> str:
        """Reads a string."""
        return self._decoded(self.take(self.u64()))

    def name(self) -> str:
        """Reads a short, printable string and makes it `place`, the name of the part that follows."""
        name = self.string()
        if len(name) > _NAME or not name.isprintable():
            raise self.damaged(f"has a name that is none ({name[:20]!r})")
        self.place = name
        return name

    def strings(self, count: int) -> list[str]:
        """Reads `count` strings, without other methods, as a vocabulary has over 100,000."""
        data, at, end, length_at = self.data, self.at, len(self.data), _U64.unpack_from
        raw: list[bytes] = []
        if count > (end - at) // 8:  # each has its length before it
            raise self.damaged(f"lists {count} strings, and {end - at} bytes are left")
        for _ in range(count):
            begin = at + 8
            at = begin + length_at(data, at)[0] if begin <= end else begin
            if at > end:
                raise self.damaged(f"needs {at - end} more bytes than there are")
            raw.append(data[begin:at])
        self.at = at
        try:
            return [text.decode() for text in raw]
        except UnicodeDecodeError:
            return [self._decoded(text) for text in raw]

    def _advance(self, count: int) -> int:
        """Skips `count` bytes; returns the offset at which they begin."""
        begin, left = self.at, len(self.data) - self.at
        if count > left:
            raise self.damaged(f"needs {count} more bytes, and {left} are left")
        self.at += count
        return begin

    def _decoded(self, text: bytes) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise self.damaged(f"holds a string that is no UTF-8 ({text[:20]!r})") from error

    def damaged(self, why: str) -> GGUFError:
        """A GGUFError about `place`, the part that is being read."""
        return _unreadable(self.path, f"cut or damaged: {self.place} {why}. Download it again")


def _check_header(cursor: Cursor) -> None:
    magic = cursor.take(4)
    if magic != b"GGUF":
        raise _unreadable(cursor.path, f"it begins with {magic!r} instead of b'GGUF'. Give a GGUF file")
    version = cursor.u32()
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        why = "is written for big-endian machines" if swapped in _VERSIONS else f"is of GGUF version {version}"
        raise _unreadable(cursor.path, f"it {why}, not 2 or 3 and little-endian. Convert the model again")


def _value(cursor: Cursor) -> Any:
    kind = cursor.u32()
    if kind == _STRING:
        return cursor.string()
    if kind != _ARRAY:
        return cursor.numbers(_format(cursor, kind), 1)[0]
    kind, count = cursor.u32(), cursor.u64()
    if kind == _STRING:
        return cursor.strings(count)
    return list(cursor.numbers(_format(cursor, kind), count))


def _format(cursor: Cursor, kind: int) -> str:
    if kind not in _NUMBERS:
        raise cursor.damaged(f"has a value of type {kind}, which GGUF does not define there")
    return _NUMBERS[kind]


def _unreadable(path: Path, why: str) -> GGUFError:
    return GGUFError(f"{path}: cannot be read as a GGUF file: {why}")
