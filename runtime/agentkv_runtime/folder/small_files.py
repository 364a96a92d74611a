"""Bounded reading of the small files of a model's folder, whose origin is unknown."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

__all__ = ["MOST_BYTES", "open_regular", "read_bytes", "read_object", "read_text"]

MOST_BYTES = 16 << 20
"""Size limit of files that describe a model; files of tokens or weights may be larger."""


@contextmanager
def open_regular(path: Path, raises: type[Exception]) -> Iterator[BufferedReader]:
    """Opens a regular file, also through a link, for reading in the block.

    Raises `raises`, naming the file, for one that is missing or unreadable, also within the block, and for a path that
    is no regular file: reading a pipe would wait, and reading a device might never end.
    """
    try:
        with _opened(path) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise raises(f"{path}: cannot be read: not a regular file")
            yield file
    except OSError as error:
        raise raises(f"{path}: cannot be read: {error.strerror}") from error


def read_bytes(path: Path, raises: type[Exception], *, most: int = MOST_BYTES) -> bytes:
    """Reads a regular file. Raises `raises` as `open_regular` does, and for more than `most` bytes."""
    with open_regular(path, raises) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise raises(f"{path}: cannot be read: longer than {most} bytes, which no such file is. Copy the folder again")
    return data


def read_text(path: Path, raises: type[Exception]) -> str:
    """Reads a UTF-8 text file. Raises `raises` as `read_bytes` does, and for invalid UTF-8."""
    data = read_bytes(path, raises)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise raises(
            f"{path}: cannot be read: not UTF-8 text ({error.reason} at byte {error.start}). Save it as UTF-8, or copy "
            "it again"
        ) from error


def read_object(path: Path, raises: type[Exception]) -> dict[str, Any]:
    """Reads a JSON object, empty if there is no file. Raises `raises` as `read_text` does, and for other JSON."""
    if not os.path.lexists(path):
        return {}
    text = read_text(path, raises)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise raises(f"{path}: cannot be read: {error}. Copy the folder again") from error
    if not isinstance(value, dict):
        raise raises(f"{path}: not a JSON object. Copy the folder again")
    return value


def _opened(path: Path) -> BufferedReader:
    try:
        return open(path, "rb", opener=_without_waiting)
    except ValueError as error:  # a name that no file can have
        raise OSError(errno.EINVAL, str(error)) from error


def _without_waiting(path: str, flags: int) -> int:
    # A pipe opens at once this way, whether or not anybody writes to it; for regular files it means nothing.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # Windows has none
