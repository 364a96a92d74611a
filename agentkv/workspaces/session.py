"""Where views of one workspace live while there are any: a folder of this process, which is removed behind the last."""

from __future__ import annotations

import atexit
import errno
import glob
import hashlib
import os
import queue
import secrets
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from agentkv_runtime.errors import StoreError
from agentkv_runtime.folder.locks import lock
from agentkv_runtime.store.home import home

from .._types.errors import WorkspaceError
from .._types.log import log
from .beneath import open_folder, open_own_folder
from .blobs import BlobStore
from .entries import FileEntry, changes_between
from .open_folders import remove_folder
from .origin import Origin
from .tree import Limits, Tree
from .version import Version

_LOCK = "lock"
_NEW = "new-"
_BEGINNING_S = 60  # that a session may take to have its lock
_left_out: set[Path] = set()


def leave_out(path: Path) -> None:
    """Leaves a file or a folder of ours out of all workspaces that it lies in, and that are opened from now on."""
    _left_out.add(path.resolve())


class Session:
    """A folder with contents and views. It is removed once no view is left; one whose process was killed is removed
    by the next process that makes one.

    Attributes:
        blobs: contents of files.
        origin: the workspace's own folder.
        is_over: whether there were views, and none is left.
    """

    def __init__(self, folder: Path, exclude: tuple[str, ...], max_bytes: int) -> None:
        """Raises WorkspaceError where no folder can be made."""
        parent = _folder_of_sessions()
        try:
            parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = Path(tempfile.mkdtemp(dir=parent, prefix=_NEW))
            self._lock = _locked(new / _LOCK)
            self._folder = new.rename(parent / new.name.removeprefix(_NEW))  # others see it once it is locked
            self.blobs = BlobStore(self._folder / "blobs")
            (self._folder / "views").mkdir()
            (self._folder / "gone").mkdir()
            self._views = open_folder(self.folder_of_views)
            weakref.finalize(self, os.close, self._views).atexit = False
        except OSError as error:
            raise WorkspaceError(
                f"no files can be kept in {parent}: {error.strerror or error}; set AGENTKV_HOME to a folder that can "
                "be written"
            ) from error
        found = parent.stat()
        ours = (glob.escape(str(path.relative_to(folder))) for path in _left_out if path.is_relative_to(folder))
        self._limits = Limits((*exclude, *ours), max_bytes, (found.st_dev, found.st_ino))
        self.origin = Origin(Tree(folder, self.blobs, self._limits, partial(open_folder, folder)))
        self._process = os.getpid()
        self._name = folder.name or "root"
        self._recorded: weakref.WeakValueDictionary[str, Version] = weakref.WeakValueDictionary()
        self._live: set[Path] = set()
        self._mutex = threading.RLock()  # garbage may be collected while it is held
        self.is_over = False
        self._gone: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._remover = threading.Thread(target=self._remove, args=(parent,), name="agentkv-workspaces", daemon=True)
        self._remover.start()
        atexit.register(self._end)

    @property
    def folder_of_views(self) -> Path:
        """Folder that all views are beneath."""
        return self._folder / "views"

    def tree(self, path: Path) -> Tree:
        """The folder of a view, of which nothing is known yet."""
        return Tree(path, self.blobs, self._limits, partial(self._opened, path))

    def _opened(self, path: Path) -> int:
        """Opens the folder of a view, which is made where it is not there: a command may have removed it with all
        files, or put a link there."""
        outer = _opened_or_made(path.parent.name, self._views)
        try:
            return _opened_or_made(path.name, outer)
        finally:
            os.close(outer)

    def recorded(self, entries: Mapping[str, FileEntry], before: Version | None = None) -> Version:
        """The version of files that were recorded, the same one for the same files; else one behind `before`."""
        said = sorted((path, *entry[:3]) for path, entry in entries.items())
        digest = hashlib.sha256(repr(said).encode("utf-8", "surrogatepass")).hexdigest()
        version = self._recorded.get(digest)
        if version is None:
            changes = entries if before is None else changes_between(before.manifest(), entries)
            version = Version(changes, *([] if before is None else [before]))
            self._recorded[digest] = version
        return version

    def begin_view(self) -> Path | None:
        """The path of a new view's folder, which is not made yet; None once the session is over."""
        path = self.folder_of_views / secrets.token_hex(6) / self._name
        with self._mutex:
            if self.is_over:
                return None
            self._live.add(path)
        return path

    def end_view(self, path: Path) -> None:
        """Removes a view: its folder is gone at once, and its space a little later. Callable from finalizers."""
        if os.getpid() != self._process:  # a fork of the process has no views of its own
            return
        gone = self._folder / "gone" / path.parent.name
        with suppress(FileNotFoundError):
            try:
                os.rename(path.parent, gone)
            except PermissionError:  # its owner may not write to it
                os.close(self._opened(path))
                os.rename(path.parent, gone)
        with self._mutex:
            self._live.discard(path)
            self.is_over = not self._live
        self._gone.put(gone)
        if self.is_over:
            self._gone.put(None)

    def _remove(self, parent: Path) -> None:
        """Removes what is gone, on a thread of its own."""
        _remove_left(parent)
        while gone := self._gone.get():
            remove_all(gone)
        _remove_locked(self._folder)
        os.close(self._lock)
        atexit.unregister(self._end)

    def _end(self) -> None:
        """At the end of the process: removes all of it."""
        if os.getpid() != self._process:
            return
        self.is_over = True
        self._gone.put(None)
        self._remover.join()


def _folder_of_sessions() -> Path:
    try:
        return home() / "workspaces"
    except StoreError:  # a user without a home
        return Path(tempfile.gettempdir()) / f"agentkv-workspaces-{os.getuid()}"


def _remove_locked(folder: Path) -> None:
    """Removes a session's folder, its lock last: a process that is killed meanwhile leaves it to the next."""
    with suppress(FileNotFoundError):
        for each in folder.iterdir():
            if each.name != _LOCK:
                remove_all(each)
    remove_all(folder)


def _locked(path: Path) -> int:
    """An open file that this process has a lock on until it is closed, which a fork of the process does not end: so
    no `FileLock`. Raises OSError where another process has one."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        lock(file, wait=False)
    except BaseException:
        os.close(file)
        raise
    return file


def _opened_or_made(name: str, within: int) -> int:
    try:
        return open_own_folder(name, within)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        os.unlink(name, dir_fd=within)
    os.mkdir(name, 0o700, dir_fd=within)
    return open_folder(name, within)


def _remove_left(parent: Path) -> None:
    """Removes what processes left that were killed."""
    with suppress(FileNotFoundError):
        for folder in parent.iterdir():
            with suppress(OSError):
                if folder.name.startswith(_NEW) and time.time() - folder.stat().st_mtime < _BEGINNING_S:
                    continue
                lock = _locked(folder / _LOCK)
                try:
                    _remove_locked(folder)
                finally:
                    os.close(lock)


def remove_all(folder: Path) -> None:
    """Removes a folder with all that is in it. What cannot be removed is logged."""
    try:
        parent = open_folder(folder.parent)
        try:
            remove_folder(folder.name, parent)
        finally:
            os.close(parent)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("files of a workspace could not be removed", folder=str(folder), why=error.strerror)
