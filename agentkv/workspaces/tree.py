"""A folder on the disk: what it holds, compared with what it held, and making it hold something else.

All of it goes down by open folders, so that a folder that becomes a link meanwhile leads nowhere.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .._types.errors import WorkspaceConflict, WorkspaceError
from .._types.log import log
from .beneath import in_one_line, open_file, open_folder, open_unreadable, removed_as_left, replaced, shown
from .entries import Changes, FileEntry
from .open_folders import OpenFolders, remove_empty, remove_folder

if TYPE_CHECKING:
    from .blobs import BlobStore

DEEPEST = 200  # folders within each other
MOST_SHOWN = 10  # paths of a conflict
READS = 3  # of a file that changes meanwhile
_TICK_NS = 20_000_000  # in which the clock of time stamps moves on, on any file system with fractions of a second
_COARSE_NS = 2_000_000_000  # on the others
_AT_THIS_MOMENT = "changed in {} at this moment"
_UNREAD = "?"  # digest of a file that was not read
_MODES = 0o777


class Stamp(NamedTuple):
    """What tells without reading that a file is as it was."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    mode: int

    @classmethod
    def of(cls, found: os.stat_result) -> Stamp:
        """The stamp of a file."""
        return cls(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_mode)


@dataclass(frozen=True)
class Limits:
    """What of a folder is looked at.

    Attributes:
        exclude: patterns of names, and of paths, that are left out.
        max_bytes: most bytes of all files.
        store: identity (device, inode) of the folder where views are, which is never part of one.
    """

    exclude: tuple[str, ...]
    max_bytes: int
    store: tuple[int, int]

    @cached_property
    def left_out(self) -> Callable[[str], object]:
        """Tells whether a name or a path is left out."""
        return re.compile("|".join(map(translate, self.exclude)) or r"(?!)").match


class Tree:
    """A folder on the disk, and what was found in it last.

    Attributes:
        path: the folder.
        blobs: contents of its files, as far as they were read.
    """

    def __init__(self, path: Path, blobs: BlobStore, limits: Limits, opened: Callable[[], int]) -> None:
        """`opened` opens the folder."""
        self.path = path
        self.blobs = blobs
        self._opened = opened
        self._limits = limits
        self._known: dict[str, tuple[Stamp, FileEntry]] = {}
        self._racy = 0  # stamps from this time on may be those of two contents

    def read(self) -> dict[str, FileEntry]:
        """Looks at all files, and stores the contents of those that have changed.

        Raises WorkspaceError where that is not possible.
        """
        entries: dict[str, FileEntry] = {}
        known: dict[str, tuple[Stamp, FileEntry]] = {}
        left = self._limits.max_bytes
        now = self._now()
        for prefix, folder, names in self._walk():
            for name, found in names:
                path = prefix + name
                left -= found.st_size
                if left < 0:
                    raise self._too_large(path)
                was = self._known.get(path)
                if was is not None and self._is_same(was[0], found):
                    known[path], entries[path] = was, was[1]
                    continue
                with _told(path):
                    if made := self._entry(name, folder, found):
                        known[path] = made
                        entries[path] = made[1]
        self._known, self._racy = known, now - self._tick
        return entries

    def _too_large(self, path: str) -> WorkspaceError:
        return WorkspaceError(
            f"the files of {self.path} have more than {self._limits.max_bytes:,} bytes, the last one seen is {path!r}; "
            "exclude what a branch does not need (`Workspace(folder, exclude=[...])`), or pass a larger max_bytes"
        )

    def write(self, changes: Changes) -> None:
        """Makes changes. Raises WorkspaceError where the system refuses something."""
        with self.root() as root:
            self._write(root, changes, None)

    def write_carefully(self, changes: Changes, old: Mapping[str, FileEntry]) -> None:
        """Makes changes in what was read last, `old`; none where a file is not as it was then, or something fails.

        Raises WorkspaceConflict, WorkspaceError.
        """
        with self.root() as root:
            self._check_unchanged(root, changes)
            try:
                self._write(root, changes, {path: known[0] for path, known in self._known.items() if path in changes})
            except BaseException:
                self._put_back(root, {path: old.get(path) for path in changes})
                raise

    def _put_back(self, root: int, before: Changes) -> None:
        """Takes back what was written, but for what changed since."""
        mine = {path: entry for path, entry in before.items() if self._is_as_read(root, path)}
        try:
            self._write(root, mine, {path: known[0] for path, known in self._known.items() if path in mine})
        except WorkspaceError as error:
            log.warning("a workspace's folder is changed in part", folder=str(self.path), why=str(error))

    @contextmanager
    def root(self) -> Iterator[int]:
        """The open folder. Raises WorkspaceError."""
        try:
            root = self._opened()
        except OSError as error:
            advice = "make it again" if isinstance(error, FileNotFoundError) else "let this user read it"
            raise WorkspaceError(f"the folder {self.path} cannot be read: {error.strerror}; {advice}") from error
        try:
            yield root
        finally:
            os.close(root)

    def trust(self) -> None:
        """Takes what was written for what is there: nobody else knew of the folder until now."""
        self._racy = self._now() - self._tick

    def differs_from(self, wanted: Mapping[str, FileEntry]) -> Changes:
        """What has to change for the folder to hold what is wanted, by the stamps of what was read or written last."""
        found: dict[str, FileEntry] = {}
        odd: set[str] = set()
        for prefix, _, names in self._walk(odd=odd):
            for name, status in names:
                path = prefix + name
                known = self._known.get(path)
                if known is not None and self._is_same(known[0], status):
                    found[path] = known[1]
                elif stat.S_ISDIR(status.st_mode):
                    found[path] = FileEntry("folder", status.st_mode & _MODES, "")
                else:
                    found[path] = FileEntry("file", 0, _UNREAD)
        changes: Changes = {path: entry for path, entry in wanted.items() if not entry.says(found.get(path))}
        changes.update((path, None) for path in [*found, *odd] if path not in wanted)
        return changes

    def _is_same(self, known: Stamp, found: os.stat_result) -> bool:
        changed = found.st_ctime_ns  # the one time that no program sets
        if changed == known[3] < self._racy:
            return known == (found.st_ino, found.st_size, found.st_mtime_ns, changed, found.st_mode)
        return stat.S_ISDIR(known[4]) and known[4] == found.st_mode

    def _entry(self, name: str, folder: int, found: os.stat_result) -> tuple[Stamp, FileEntry] | None:
        """What a name in a folder holds; None for what is gone."""
        stamp = Stamp.of(found)
        if stat.S_ISDIR(found.st_mode):
            return stamp, FileEntry("folder", found.st_mode & _MODES, "")
        with suppress(FileNotFoundError):
            if stat.S_ISLNK(found.st_mode):
                return stamp, FileEntry("link", 0, os.readlink(name, dir_fd=folder), 0, found.st_mtime_ns)
            return self._content(name, folder)
        return None

    def _content(self, name: str, folder: int) -> tuple[Stamp, FileEntry]:
        file = open_file(name, folder)
        try:
            for _ in range(READS):
                before = os.fstat(file)
                if before.st_size > self._limits.max_bytes:
                    break
                digest, size = self.blobs.put(file)
                if Stamp.of(os.fstat(file)) == Stamp.of(before):
                    return Stamp.of(before), FileEntry(
                        "file", before.st_mode & _MODES, digest, size, before.st_mtime_ns
                    )
        finally:
            os.close(file)
        raise WorkspaceError("it changes while it is read; try again once nothing writes to it")

    @property
    def _tick(self) -> int:
        return _TICK_NS if self._now() % 1_000_000_000 else _COARSE_NS

    def _now(self) -> int:
        """The time of the file system, which may be another machine's."""
        probe = self.blobs.folder / ".now"
        try:
            probe.touch(0o600)
            return probe.stat().st_mtime_ns
        except OSError as error:
            raise WorkspaceError(f"no files can be kept in {probe.parent}: {error.strerror}") from error

    def _walk(self, odd: set[str] | None = None) -> Iterator[tuple[str, int, list[tuple[str, os.stat_result]]]]:
        """All files, links and folders, by the folder that they are in, the outer one first: (its path with "/", the
        open folder, names in it with their status). `odd` gets paths of other things, for what is about to be
        written to."""
        with self.root() as root:
            yield from self._walk_in(root, "", odd, 1)

    def _walk_in(
        self, folder: int, prefix: str, odd: set[str] | None, depth: int
    ) -> Iterator[tuple[str, int, list[tuple[str, os.stat_result]]]]:
        if depth > DEEPEST:
            raise WorkspaceError(f"{shown(prefix)} has more than {DEEPEST} folders within each other")
        names, left_out, folders = [], self._limits.left_out, []
        for each in self._listed(folder, prefix):
            name, found = each
            kind = stat.S_IFMT(found.st_mode)
            if left_out(name) or left_out(prefix + name) or (name[0] == "." and removed_as_left(name, folder)):
                continue
            if kind == stat.S_IFDIR:
                if (found.st_dev, found.st_ino) == self._limits.store:
                    continue
                folders.append(name)
            elif kind not in (stat.S_IFREG, stat.S_IFLNK):
                if odd is not None:
                    odd.add(prefix + name)
                continue
            names.append(each)
        yield prefix, folder, names
        for name in folders:
            try:
                below = open_folder(name, folder) if odd is None else open_unreadable(name, folder)
            except (FileNotFoundError, NotADirectoryError):
                continue  # it has just gone
            except OSError as error:
                raise unreadable(prefix + name, error) from error
            try:
                yield from self._walk_in(below, f"{prefix}{name}/", odd, depth + 1)
            finally:
                os.close(below)

    def _listed(self, folder: int, path: str) -> list[tuple[str, os.stat_result]]:
        listed = []
        with _told(path), os.scandir(folder) as names:
            for each in names:
                try:
                    listed.append((each.name, each.stat(follow_symlinks=False)))
                except FileNotFoundError:
                    continue
        return listed

    def _check_unchanged(self, root: int, changes: Changes) -> None:
        changed = [path for path in changes if not self._is_as_read(root, path)]
        changed += [path for path, entry in changes.items() if entry is not None and self._would_lose(path, entry)]
        if changed:
            raise conflict(changed, _AT_THIS_MOMENT.format(self.path))

    def _is_as_read(self, root: int, path: str) -> bool:
        known = self._known.get(path)
        try:
            found = Stamp.of(os.stat(path, dir_fd=root, follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return known is None
        if known is None:
            return False
        are_folders = stat.S_ISDIR(found.mode) and stat.S_ISDIR(known[0].mode)
        return are_folders or known[0] == found

    def _would_lose(self, path: str, entry: FileEntry) -> bool:
        """Whether a folder that becomes something else holds what is left out, which nobody has a copy of."""
        known = self._known.get(path)
        if entry.kind == "folder" or known is None or not stat.S_ISDIR(known[0].mode):
            return False
        held = (Path(at, name) for at, folders, names in os.walk(self.path / path) for name in [*folders, *names])
        return any(str(each.relative_to(self.path)) not in self._known for each in held)

    def _write(self, root: int, changes: Changes, expected: dict[str, Stamp] | None) -> None:
        """Makes changes. `expected`: what is to be there when it is replaced; None for anything."""
        folders = OpenFolders(root)
        try:
            for path in sorted(changes, reverse=True):  # what is in a folder goes before it
                with _told(path):
                    self._make_way(folders, path, changes[path], expected)
            for path in sorted(changes):
                if (entry := changes[path]) is not None:
                    with _told(path):
                        self._make(folders, path, entry, expected)
            for path in sorted(changes, reverse=True):
                entry = changes[path]
                if entry is not None and entry.kind == "folder":
                    with _told(path):
                        folders.set_mode(path, entry.mode)
                        self._learn(folders, path, entry)
        finally:
            try:
                folders.restore_modes()
            finally:
                folders.close()

    def _check_expected(self, folders: OpenFolders, path: str, expected: dict[str, Stamp] | None) -> None:
        if expected is None:
            return
        found, stamp = folders.stat(path), expected.get(path)
        is_folder = found is not None and stat.S_ISDIR(found.st_mode)
        if is_folder and stamp is not None and stat.S_ISDIR(stamp.mode):
            return
        if stamp != (None if found is None else Stamp.of(found)):
            raise conflict([path], _AT_THIS_MOMENT.format(self.path))

    def _make_way(
        self, folders: OpenFolders, path: str, entry: FileEntry | None, expected: dict[str, Stamp] | None
    ) -> None:
        """Removes what is gone, or becomes something else than a file."""
        self._check_expected(folders, path, expected)
        found = folders.stat(path)
        self._known.pop(path, None)
        if found is None:
            return
        is_folder = stat.S_ISDIR(found.st_mode)
        if entry is not None and is_folder == (entry.kind == "folder"):
            return
        with folders.parent(path) as (within, name):
            if is_folder:
                folders.forget(path)
                with suppress(FileNotFoundError):
                    if entry is None:
                        remove_empty(name, within)
                    elif expected is None:
                        remove_folder(name, within)
                    elif not remove_empty(name, within):
                        raise conflict([path], _AT_THIS_MOMENT.format(self.path))
            else:
                os.unlink(name, dir_fd=within)
        if expected is not None:
            expected.pop(path, None)

    def _make(self, folders: OpenFolders, path: str, entry: FileEntry, expected: dict[str, Stamp] | None) -> None:
        with folders.parent(path) as (within, name):
            if entry.kind == "folder":
                try:
                    os.mkdir(name, 0o700, dir_fd=within)
                except FileExistsError:
                    os.close(open_folder(name, within))  # it is one
                self._learn(folders, path, entry)
                return
            if entry.kind == "link":
                self._check_expected(folders, path, expected)
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=within)
                os.symlink(entry.data, name, dir_fd=within)
                os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=within, follow_symlinks=False)
            else:
                with replaced(name, within, entry.mode) as file:
                    self.blobs.write_to(file, entry.data)
                    os.utime(file, ns=(entry.mtime_ns, entry.mtime_ns))
                    self._check_expected(folders, path, expected)
        self._learn(folders, path, entry)

    def _learn(self, folders: OpenFolders, path: str, entry: FileEntry) -> None:
        if found := folders.stat(path):
            self._known[path] = Stamp.of(found), entry


@contextmanager
def _told(path: str) -> Iterator[None]:
    """Scope in which a file is worked on: errors name it."""
    try:
        yield
    except WorkspaceConflict:
        raise
    except WorkspaceError as error:
        raise type(error)(f"{shown(path)}: {error}") from error
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: str, error: OSError) -> WorkspaceError:
    """The error for a file that the system refuses."""
    return WorkspaceError(f"{shown(path)}: {error.strerror or error}; let this user read and write it, or exclude it")


def conflict(paths: Sequence[str], why: str) -> WorkspaceConflict:
    """The error for files that two sides changed."""
    shown = ", ".join(map(in_one_line, paths[:MOST_SHOWN]))
    more = f" and {len(paths) - MOST_SHOWN} more" if len(paths) > MOST_SHOWN else ""
    return WorkspaceConflict(
        f"{shown}{more}: {why}; copy one side's over the other's, or write the same to both, and try again", paths
    )
