"""The workspace's own folder, which changes only where a branch is applied to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from agentkv_runtime.folder.locks import lock

from .entries import FileEntry, changes_between
from .merge import Merge, State
from .version import Version

if TYPE_CHECKING:
    from .tree import Tree


class Origin:
    """The user's folder. It is read when a branch begins, and when one is applied to it."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._version: Version | None = None
        self._entries: dict[str, FileEntry] = {}
        self._lock = threading.Lock()

    def read(self) -> Version:
        """The files of now. Raises WorkspaceError."""
        with self._lock:
            return self._checked_in()

    def apply(self, theirs: State, base: Version) -> list[str]:
        """Makes the changes of a view since `base`, and returns the paths of files and links. Another process that
        does so waits.

        Raises WorkspaceConflict, WorkspaceError.
        """
        with self._lock, self._tree.root() as root, _locked(root):
            ours = State(self._checked_in(), self._entries)
            merge = Merge.of(
                ours, theirs, base, f"changed in {self._tree.path} as well since the branch began or was applied"
            )
            self._tree.write_carefully(merge.changes, ours.entries)
            self._version, self._entries = merge.version, merge.entries
            said = {path: entry or ours.entries[path] for path, entry in merge.changes.items()}
            return sorted(path for path, entry in said.items() if entry.kind != "folder")

    def _checked_in(self) -> Version:
        entries = self._tree.read()
        if self._version is None:
            self._version = Version(entries)
        elif changes := changes_between(self._entries, entries):
            self._version = Version(changes, self._version)
        self._entries = entries
        return self._version


@contextmanager
def _locked(folder: int) -> Iterator[None]:
    """Scope in which no other process, and no other Workspace, applies a branch to an open folder, where the file
    system has locks."""
    with suppress(OSError):  # NFS locks no folders
        lock(folder, wait=True)
    yield  # closing the folder ends it
