"""Which beginnings prompts had, as hashes in a file that processes share."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from agentkv_runtime.errors import TensorFileError
from agentkv_runtime.folder.fresh_file import put_in_place
from agentkv_runtime.folder.small_files import open_regular

from .hashes import Hashes

MOST_HASHES = 1 << 15
"""Hashes that stay when the file is cut: those of some two million tokens."""


class SeenPrefixes:
    """A file of hashes, 8 bytes each, oldest first. What is damaged in it are hashes of nothing: a prompt is then taken
    for the first that begins so."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: set[int] = set()
        self._inode = 0
        self._at = 0  # bytes of it that are known

    def add(self, hashes: Hashes) -> int:
        """Adds the hashes of a prompt's beginnings; returns how many blocks of it an earlier prompt began with. Raises
        OSError, with the earlier ones known all the same."""
        self._read()
        known = [index for index, value in enumerate(hashes.tolist()) if value in self._known]
        fresh = np.array([value for value in hashes.tolist() if value not in self._known], np.uint64)
        if fresh.size:
            self._known.update(fresh.tolist())
            self._append(fresh.tobytes())
        if self._at > 2 * MOST_HASHES * 8:  # what others add meanwhile may be lost: it comes again
            put_in_place(self._path, self._bytes(self._at - MOST_HASHES * 8), 0o600)
        return known[-1] + 1 if known else 0

    def _append(self, data: bytes) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            gap = -os.fstat(fd).st_size % 8  # a write that a full disk cut short
            os.write(fd, b"\0" * gap + data)  # in one piece: others append as well
        finally:
            os.close(fd)

    def _read(self) -> None:
        """Reads what others added, or everything where the file is another one."""
        try:
            found = os.stat(self._path)
        except OSError:
            return
        if found.st_ino != self._inode or found.st_size < self._at:
            self._known, self._inode, self._at = set(), found.st_ino, max(found.st_size // 8 - 4 * MOST_HASHES, 0) * 8
        data = self._bytes(self._at)
        self._known.update(np.frombuffer(data, np.uint64).tolist())
        self._at += len(data)

    def _bytes(self, first: int) -> bytes:
        """Whole hashes from byte `first` on, as many as a file should have at most."""
        try:
            with open_regular(self._path, TensorFileError) as file:
                file.seek(first)
                data = file.read(4 * MOST_HASHES * 8)
        except TensorFileError:  # none, or something else lies there
            return b""
        return data[: len(data) // 8 * 8]
