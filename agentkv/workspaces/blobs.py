"""Contents of files, each stored once under its digest. Nobody writes to a stored one, so they may be shared."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .beneath import is_at_work, open_folder, under_way

CHUNK = 1 << 20  # bytes; contents up to that size are read at once
_UNDER_WAY = re.compile(r"new-([0-9]+)-([0-9a-f]{8})[0-9a-f]{8}")
_FICLONE = 0x40049409  # of Linux: the new file shares the blocks of the old one, copy on write
_NO_CLONES = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM, errno.EBADF)


class BlobStore:
    """Contents by digest, in a folder.

    Attributes:
        folder: where they are, in folders of two digits.
    """

    def __init__(self, folder: Path) -> None:
        """Makes the folder, where it does not exist. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder = folder
        self._clones = True  # as far as is known

    def path(self, digest: str) -> Path:
        """Where a content is, or would be."""
        return self.folder / digest[:2] / digest[2:]

    def __contains__(self, digest: str) -> bool:
        return self.path(digest).exists()

    def digests(self) -> Iterator[str]:
        """Digests of all contents."""
        for folder in self.folder.iterdir():
            if len(folder.name) == 2:
                yield from (folder.name + file.name for file in folder.iterdir())

    def remove(self, digest: str) -> None:
        """Removes a content, if it is there."""
        self.path(digest).unlink(missing_ok=True)

    def remove_left(self) -> None:
        """Removes what processes left under way that were killed."""
        for path in self.folder.glob("new-*"):
            left = _UNDER_WAY.fullmatch(path.name)
            if left is None or not is_at_work(int(left[1]), left[2]):
                path.unlink(missing_ok=True)

    def put(self, file: int) -> tuple[str, int]:
        """Stores the content of an open file; returns its digest and its size. Raises OSError."""
        begin = os.pread(file, CHUNK, 0)
        if len(begin) < CHUNK:
            digest = hashlib.sha256(begin).hexdigest()
            if digest not in self:
                self._keep(digest, begin)
            return digest, len(begin)
        return self._put_long(file)

    def _keep(self, digest: str, content: bytes) -> None:
        new, path = self._new()
        try:
            write_all(new, content)
            self._named(path, digest)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(path)
            raise
        finally:
            os.close(new)

    def _put_long(self, file: int) -> tuple[str, int]:
        new, path = self._new()
        try:
            self.copy(file, new)
            digest, size, at = hashlib.sha256(), 0, 0
            while chunk := os.pread(new, CHUNK, at):
                digest.update(chunk)
                at += len(chunk)
                size = at
            if digest.hexdigest() in self:
                os.unlink(path)
            else:
                self._named(path, digest.hexdigest())
            return digest.hexdigest(), size
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(path)
            raise
        finally:
            os.close(new)

    def _new(self) -> tuple[int, str]:
        path = f"{self.folder}/new-{under_way()}"
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), path

    def _named(self, path: str, digest: str) -> None:
        target = self.path(digest)
        try:
            os.rename(path, target)
        except FileNotFoundError:
            target.parent.mkdir(mode=0o700, exist_ok=True)
            os.rename(path, target)

    def open(self, digest: str) -> int:
        """Opens a content for reading. Raises OSError."""
        return os.open(self.path(digest), os.O_RDONLY | os.O_CLOEXEC)

    def write_to(self, file: int, digest: str) -> None:
        """Writes a content to a new file. Raises OSError."""
        blob = self.open(digest)
        try:
            self.copy(blob, file)
        finally:
            os.close(blob)

    def copy(self, source: int, target: int) -> None:
        """Copies one file to a new one: shares its blocks where the file system can, copy on write."""
        if self._clones and not self._cloned(source, target):
            self._clones = False
        if not self._clones:
            at = 0
            while chunk := os.pread(source, CHUNK, at):
                write_all(target, chunk)
                at += len(chunk)

    def share(self, digest: str, other: BlobStore) -> None:
        """Has another store have a content as well: by a second name where both are on one file system."""
        target = other.path(digest)
        if target.exists():
            return
        target.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            os.link(self.path(digest), target)
        except FileExistsError:
            pass
        except OSError:
            file = self.open(digest)
            try:
                other.put(file)
            finally:
                os.close(file)

    def sync(self, digest: str) -> None:
        """Has a content on the disk, so that it outlives a loss of power."""
        path = self.path(digest)
        for each in (self.open(digest), open_folder(path.parent), open_folder(self.folder)):
            try:
                os.fsync(each)
            finally:
                os.close(each)

    @staticmethod
    def _cloned(source: int, target: int) -> bool:
        if sys.platform != "linux":
            return False
        from fcntl import ioctl  # no module of Windows

        try:
            ioctl(target, _FICLONE, source)
        except OSError as error:
            if error.errno not in _NO_CLONES:
                raise
            return False
        return True


def write_all(file: int, content: bytes) -> None:
    """Writes all of a content to an open file. Raises OSError."""
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]
