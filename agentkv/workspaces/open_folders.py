"""Folders beneath a folder, kept open on the way through many paths."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .beneath import OWNERS, let_owner, open_folder, open_own_folder


class OpenFolders:
    """The folders of the last path, open. Folders that their owner may not write to may be written to until
    `restore_modes`."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._open: list[tuple[str, int]] = []
        self._modes: dict[str, int] = {}

    @contextmanager
    def parent(self, path: str) -> Iterator[tuple[int, str]]:
        """The open folder that a path is in, and the path's name in it. Raises OSError."""
        *folders, name = path.split("/")
        same = 0
        while same < min(len(folders), len(self._open)) and self._open[same][0] == folders[same]:
            same += 1
        self._close_behind(same)
        for at in range(same, len(folders)):
            self._open.append((folders[at], open_folder(folders[at], self._here)))
            self._let_write("/".join(folders[: at + 1]))
        yield self._here, name

    def stat(self, path: str) -> os.stat_result | None:
        """What is at a path; None for nothing."""
        try:
            with self.parent(path) as (within, name):
                return os.stat(name, dir_fd=within, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:  # a link where a folder was
                return None
            raise

    def forget(self, path: str) -> None:
        """Closes a folder that is about to be removed."""
        names = path.split("/")
        if [name for name, _ in self._open[: len(names)]] == names:
            self._close_behind(len(names) - 1)
        self._modes = {each: mode for each, mode in self._modes.items() if not f"{each}/".startswith(f"{path}/")}

    def set_mode(self, path: str, mode: int) -> None:
        """Sets the permissions of a folder."""
        self._modes.pop(path, None)
        with self.parent(path) as (within, name):
            folder = open_folder(name, within)
            try:
                os.fchmod(folder, mode)
            finally:
                os.close(folder)

    def restore_modes(self) -> None:
        """Gives folders the permissions that they had."""
        for path, mode in list(self._modes.items()):
            with suppress(FileNotFoundError):
                self.set_mode(path, mode)

    def close(self) -> None:
        """Closes all folders but the root."""
        self._close_behind(0)

    @property
    def _here(self) -> int:
        return self._open[-1][1] if self._open else self._root

    def _close_behind(self, count: int) -> None:
        while len(self._open) > count:
            os.close(self._open.pop()[1])

    def _let_write(self, path: str) -> None:
        mode = stat.S_IMODE(os.fstat(self._here).st_mode)
        if mode & OWNERS != OWNERS:
            os.fchmod(self._here, mode | OWNERS)
            self._modes.setdefault(path, mode)


def remove_empty(name: str, within: int) -> bool:
    """Removes a folder, or returns False: one that holds what is left out of the workspace stays."""
    try:
        os.rmdir(name, dir_fd=within)
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False


def remove_folder(name: str, within: int) -> None:
    """Removes a folder with all that is in it; follows no link. Folders within each other are few open files: each is
    moved up before it is emptied."""
    top = open_own_folder(name, within)
    try:
        left = _emptied(top, top)
        while left:
            below = left.pop()
            folder = open_own_folder(below, top)
            try:
                left += _emptied(folder, top)
            finally:
                os.close(folder)
            os.rmdir(below, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=within)


def _emptied(folder: int, top: int) -> list[str]:
    """Removes files of an open folder, and moves its folders to `top`; returns their names there."""
    with os.scandir(folder) as names:
        found = [(each.name, each.is_dir(follow_symlinks=False)) for each in names]
    moved = []
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
        elif folder == top:
            moved.append(name)
        else:
            moved.append(f".agentkv-{secrets.token_hex(8)}")
            let_owner(name, folder)  # one that its owner may not write to cannot be moved
            os.rename(name, moved[-1], src_dir_fd=folder, dst_dir_fd=top)
    return moved
