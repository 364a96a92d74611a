"""Opening what lies beneath a folder, and nothing else: each name of a path is opened in the folder before it, and the
kernel follows no link. So there is no moment between a check and a use at which the path could come to mean another
file."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .._types.errors import OutsideWorkspace, WorkspaceError
from .._types.show import spellable

OWNERS = 0o700  # permissions of a folder that its owner may use
NOTHING_THERE = "there is no such file or folder; list the folder to see what there is"
MOST_LINKS = 40  # that one path goes through, as in Linux
_LONG = 200  # characters of a path that is shown
_UNDER_WAY = re.compile(r"\.agentkv-([0-9]+)-([0-9a-f]{8})[0-9a-f]{8}")
_ENDS_LINES = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
_PROCESS = secrets.token_hex(4)  # its number may have been another's that was killed


def open_folder(name: str | os.PathLike[str], within: int | None = None) -> int:
    """Opens a folder, no link to one. Raises OSError."""
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)


def open_unreadable(name: str, within: int) -> int:
    """Opens a folder of a branch's; one that its owner may not read may be from now on. Raises OSError."""
    try:
        return open_folder(name, within)
    except PermissionError:
        let_owner(name, within)
        return open_folder(name, within)


def open_own_folder(name: str, within: int) -> int:
    """Opens a folder of a branch's, which its owner may read and write to from now on. Raises OSError."""
    folder = open_unreadable(name, within)
    if os.fstat(folder).st_mode & OWNERS != OWNERS:
        os.fchmod(folder, OWNERS)
    return folder


def let_owner(name: str, within: int) -> None:
    """Lets its owner read and write to a folder, no link to one. Raises OSError."""
    if sys.platform != "linux":
        os.chmod(name, OWNERS, dir_fd=within, follow_symlinks=False)
        return
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    try:
        os.chmod(f"/proc/self/fd/{handle}", OWNERS)  # of Linux, where only this follows no link
    finally:
        os.close(handle)


def open_file(name: str, within: int) -> int:
    """Opens a plain file for reading: no link, device, pipe or socket. Raises OSError, WorkspaceError."""
    found = os.stat(name, dir_fd=within, follow_symlinks=False)  # opening a device may do something
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISLNK(found.st_mode):
        raise WorkspaceError(f"{name!r} is {what_is(found.st_mode)}, and only plain files are read and written")
    how = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    file = os.open(name, how, dir_fd=within)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise WorkspaceError(f"{name!r} is no plain file any more, and only such are read and written")
    return file


def unusable(path: str, error: OSError) -> WorkspaceError:
    """The error for a path that the system refuses."""
    match error.errno:
        case errno.ENOENT:
            why = NOTHING_THERE
        case errno.ENOTDIR | errno.ELOOP:
            why = "it leads through a file"
        case _:
            why = error.strerror or str(error)
    return WorkspaceError(f"{shown(path)}: {why}")


def shown(path: str) -> str:
    """A path as error messages show it."""
    return repr(spellable(path if len(path) <= _LONG else f"{path[:_LONG]}..."))


def in_one_line(name: str) -> str:
    """A name as text in which lines mean something: what would end one is escaped."""
    return _ENDS_LINES.sub(lambda found: found[0].encode("unicode_escape").decode(), spellable(name))


def what_is(mode: int) -> str:
    """What a file is, in words."""
    for is_it, words in (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISREG, "a file"),
        (stat.S_ISLNK, "a link"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
    ):
        if is_it(mode):
            return words
    return "a device"


class Place:
    """A name in an open folder beneath the root.

    Attributes:
        folder: the folder.
        name: the name in it; "." for the root itself.
        path: both, relative to the root, without links.
    """

    def __init__(self, folder: int, name: str, path: str) -> None:
        self.folder = folder
        self.name = name
        self.path = path

    def stat(self) -> os.stat_result | None:
        """What is there; None for nothing."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None


@contextmanager
def beneath(root: int, path: str, *, make: bool = False) -> Iterator[Place]:
    """The place that a path means beneath an open folder, links followed as far as they stay there; the last name need
    not exist. With `make`, folders that are missing on the way are made.

    Raises:
        OutsideWorkspace: the path, or a link in it, leads out of the folder.
        WorkspaceError: it leads through a file, a missing folder, or too many links.
    """
    walk = _Walk(root, path, make)
    try:
        yield walk.place()
    except BaseException:
        walk.remove_made()
        raise
    finally:
        walk.close()


class _Walk:
    """A walk down from a folder; ".." goes back by the folders that it came through."""

    def __init__(self, root: int, path: str, make: bool) -> None:
        if "\0" in path:
            raise WorkspaceError(f"{shown(path)} is no path: it holds a zero byte")
        try:
            os.fsencode(path)
        except UnicodeEncodeError as error:
            raise WorkspaceError(f"{shown(path)} is no path: it holds half a character") from error
        self._path = path
        self._make = make
        self._root = root
        self._folders: list[tuple[int, str]] = []
        self._new: list[tuple[int, str]] = []  # folders that were made, by the one that they are in
        self._left = self._names(path)
        self._links = 0

    def place(self) -> Place:
        while self._left:
            name = self._left.pop()
            if name == "..":
                self._go_up()
            elif target := self._link(name):
                self._left += self._names(target)
            elif self._left:
                self._go_down(name)
            else:
                return Place(self._here, name, "/".join([*(name for _, name in self._folders), name]))
        if not self._folders:
            return Place(self._root, ".", "")
        _, name = self._folders[-1]
        folder = self._folders[-2][0] if len(self._folders) > 1 else self._root
        return Place(folder, name, "/".join(name for _, name in self._folders))

    def close(self) -> None:
        for folder, _ in [*self._folders, *self._new]:
            os.close(folder)
        self._folders.clear()
        self._new.clear()

    def remove_made(self) -> None:
        """Removes folders that were made for what did not come to be."""
        for within, name in reversed(self._new):
            with suppress(OSError):  # something is in it by now
                os.rmdir(name, dir_fd=within)

    @property
    def _here(self) -> int:
        return self._folders[-1][0] if self._folders else self._root

    def _names(self, path: str) -> list[str]:
        """Names of a relative path, the first one last."""
        if path.startswith("/"):
            raise self._leads_out()
        return [name for name in reversed(path.split("/")) if name not in ("", ".")]

    def _go_up(self) -> None:
        if not self._folders:
            raise self._leads_out()
        os.close(self._folders.pop()[0])

    def _go_down(self, name: str) -> None:
        try:
            if self._make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=self._here)
                    self._new.append((os.dup(self._here), name))
            self._folders.append((open_folder(name, self._here), name))
        except OSError as error:
            raise unusable(self._path, error) from error

    def _link(self, name: str) -> str:
        """Target of a link; "" for what is none."""
        try:
            target = os.readlink(name, dir_fd=self._here)
        except OSError:
            return ""
        self._links += 1
        if self._links > MOST_LINKS:
            raise WorkspaceError(f"{shown(self._path)} leads through more than {MOST_LINKS} links")
        return target

    def _leads_out(self) -> OutsideWorkspace:
        how = "is absolute, and counts as one that leads" if self._path.startswith("/") else "leads"
        return OutsideWorkspace(
            f"{shown(self._path)} {how} out of the workspace; give a path relative to its folder, which stays in it"
        )


def removed_as_left(name: str, within: int) -> bool:
    """Whether a name is that of a file under way of `replaced`; one whose process was killed is removed."""
    left = _UNDER_WAY.fullmatch(name)
    if left is None:
        return False
    with suppress(OSError):
        if not is_at_work(int(left[1]), left[2]):
            os.unlink(name, dir_fd=within)
    return True


def under_way() -> str:
    """A name for a file under way, by which `is_at_work` tells whether its process is."""
    return f"{os.getpid()}-{_PROCESS}{secrets.token_hex(4)}"


def is_at_work(process: int, token: str) -> bool:
    """Whether a process that named a file lives."""
    if process == os.getpid():
        return token == _PROCESS
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's
        return True
    return True


@contextmanager
def replaced(name: str, within: int, mode: int) -> Iterator[int]:
    """An open new file, which takes the place of what `name` is in a folder once the block ends. What had that name
    is never written to, so that its other names, if it has some, keep their content."""
    new = f".agentkv-{under_way()}"
    file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=within)
    try:
        yield file
        os.fchmod(file, mode)
        os.rename(new, name, src_dir_fd=within, dst_dir_fd=within)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=within)
        raise
    finally:
        os.close(file)
