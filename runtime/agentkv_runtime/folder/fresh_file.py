"""Atomic replacement of files: at every moment the path has the complete old file or the complete new one."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import threading
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from agentkv_runtime.folder.locks import HAS_LOCKS, check_locks, lock

__all__ = ["FreshFile", "put_in_place", "remove_leftovers"]

_PREFIX, _SUFFIX = ".agentkv-", ".unfinished"


class FreshFile:
    """An unfinished file in its target folder; hidden, and locked for as long as its writer lives.

    Replaces the target of a symbolic link, and keeps the permissions of a file that it replaces; a new one gets `mode`,
    less the umask. Removes unfinished files of writers that were killed. Methods may be called from any thread and
    raise OSError, and making one on a system without locks does.
    """

    def __init__(self, path: Path, mode: int = 0o666) -> None:
        check_locks()
        self._target = Path(os.path.realpath(path))
        if os.path.lexists(self._target) and not stat.S_ISREG(os.lstat(self._target).st_mode):
            raise OSError(None, "there is something else than a regular file", str(self._target))
        remove_leftovers(self._target.parent, _prefix(self._target))
        self._lock = threading.Lock()
        self._path, self._fd = _locked_file(self._target, mode)

    def write(self, at: int, data: npt.NDArray[np.uint8] | bytes) -> None:
        """Writes all of `data` from byte `at` on."""
        left = data.data if isinstance(data, np.ndarray) else memoryview(data)
        with self._lock:
            if self._fd < 0:
                raise OSError(None, "the file was given up", str(self._target))
            while left:
                written = os.pwrite(self._fd, left, at)
                left = left[written:]
                at += written

    def put_in_place(self) -> None:
        """Syncs the file, renames it to its target, and syncs the folder."""
        with self._lock:
            if self._fd < 0:
                raise OSError(None, "the file was given up", str(self._target))
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(self._fd, stat.S_IMODE(os.stat(self._target).st_mode))
            os.fsync(self._fd)
            os.replace(self._path, self._target)
            self._close()
        folder = os.open(self._target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        """Removes the unfinished file; does nothing after `put_in_place`."""
        with self._lock:
            if self._fd < 0:
                return
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)


def _prefix(target: Path) -> str:
    return f"{_PREFIX}{xxhash.xxh3_64_hexdigest(os.fsencode(target.name))}-"


def _locked_file(target: Path, mode: int) -> tuple[Path, int]:
    while True:
        path = target.with_name(f"{_prefix(target)}{secrets.token_hex(8)}{_SUFFIX}")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        lock(fd, wait=True)
        if os.fstat(fd).st_nlink:  # nobody took it for a leftover before it was locked
            return path, fd
        os.close(fd)


def remove_leftovers(folder: Path, prefix: str = _PREFIX) -> None:
    """Removes the unfinished files of a folder whose writers were killed. Raises OSError if it cannot be listed, and on
    a system without locks."""
    check_locks()
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if e.name.startswith(prefix) and e.name.endswith(_SUFFIX)]
    for name in names:
        with contextlib.suppress(OSError):  # of others, or still being written
            fd = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                lock(fd, wait=False)
                os.unlink(folder / name)
            finally:
                os.close(fd)


def put_in_place(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Replaces the file at `path` atomically; a new one gets `mode`. Raises OSError, leaving the old file."""
    if not HAS_LOCKS:
        _put_without_lock(path, data, mode)
        return
    file = FreshFile(path, mode)
    try:
        file.write(0, data)
        file.put_in_place()
    except BaseException:
        file.discard()
        raise


def _put_without_lock(path: Path, data: bytes, mode: int) -> None:
    """Replaces a file likewise on a system without locks, where what a killed writer leaves stays."""
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f"{_prefix(target)}{secrets.token_hex(8)}{_SUFFIX}")
    try:
        with open(unfinished, "xb", opener=partial(os.open, mode=mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
