"""Files of workspaces in a journal: versions in its database, each the difference from one before it, and contents once
each in a folder beside it."""

from __future__ import annotations

import json
import re
import sqlite3
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from .._types.errors import JournalError
from ..workspaces.blobs import BlobStore
from ..workspaces.entries import Changes, FileEntry, change
from ..workspaces.session import leave_out
from ..workspaces.version import Version
from ..workspaces.view import WorkspaceView
from ..workspaces.workspace import Workspace, restored_view

TABLES = """
CREATE TABLE IF NOT EXISTS file_versions (id INTEGER PRIMARY KEY, base INTEGER, changes TEXT NOT NULL);
-- The files of a turn's branch behind the last of its messages and calls that has ended.
CREATE TABLE IF NOT EXISTS run_files (run TEXT PRIMARY KEY, files TEXT NOT NULL) WITHOUT ROWID;
"""
_USED_STATES = "SELECT state FROM branches UNION SELECT base FROM runs UNION SELECT branch_state FROM messages"
USED_VERSIONS = f"""
SELECT json_extract(rest, '$.files.version') AS id FROM states WHERE id IN ({_USED_STATES}) UNION
SELECT json_extract(rest, '$.files.base') FROM states WHERE id IN ({_USED_STATES}) UNION
SELECT json_extract(files, '$.version') FROM run_files UNION
SELECT json_extract(files, '$.base') FROM run_files
"""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class SavedFiles(TypedDict):
    """The files of a branch at one moment.

    Attributes:
        folder: folder of the workspace.
        exclude: its patterns.
        max_bytes: its bound.
        version: id of the version.
        base: id of the version that the branch began with.
    """

    folder: str
    exclude: list[str]
    max_bytes: Annotated[int, Field(ge=1)]
    version: int
    base: int


_CHANGES = TypeAdapter(dict[str, tuple[str, int, str, int, int] | None])
_SAVED = TypeAdapter(SavedFiles)


class FileTable:
    """Writes and reads files of branches. All methods are for the journal's thread, but for `restored`."""

    def __init__(self, journal: Path, sync: str) -> None:
        self._journal = journal
        self._syncs = sync == "full"
        self._rows: weakref.WeakKeyDictionary[Version, int] = weakref.WeakKeyDictionary()
        self._blobs: BlobStore | None = None
        for name in ("", "-wal", "-shm", "-journal", "-files", ".lock"):  # of a journal that is in a workspace's folder
            leave_out(journal.with_name(f"{journal.name}{name}"))

    @property
    def blobs(self) -> BlobStore:
        """Contents of the files. Raises JournalError where there can be none."""
        if self._blobs is None:
            folder = folder_of(self._journal)
            try:
                self._blobs = BlobStore(folder)
            except OSError as error:
                raise JournalError(
                    f"files cannot be kept in {folder}: {error}; give a path that can be written"
                ) from error
        return self._blobs

    def forget(self) -> None:
        """Forgets what is in the database, after a commit that failed."""
        self._rows.clear()

    def write(self, connection: sqlite3.Connection, view: WorkspaceView | None) -> SavedFiles | None:
        """Writes files as they are now, contents first. They are read here, on the thread of all entries: so what is
        entered later has later files. Raises JournalError, WorkspaceError."""
        if view is None:
            return None
        workspace, (version, base) = view.workspace, view.saved()
        try:
            return {
                "folder": str(workspace.folder),
                "exclude": list(workspace.exclude),
                "max_bytes": workspace.max_bytes,
                "base": self._written(connection, view, base),
                "version": self._written(connection, view, version),
            }
        except OSError as error:
            raise JournalError(f"files of {workspace.folder} cannot be kept for the journal: {error}") from error

    def note(self, connection: sqlite3.Connection, run: str, view: WorkspaceView | None) -> None:
        """Enters the files of a turn's branch as they are now. Raises JournalError, WorkspaceError."""
        if saved := self.write(connection, view):
            connection.execute("INSERT OR REPLACE INTO run_files VALUES (?, ?)", (run, json.dumps(saved)))

    def of_run(self, connection: sqlite3.Connection, run: str) -> SavedFiles | None:
        """The files that were noted last for a turn. Raises ValueError."""
        row = connection.execute("SELECT files FROM run_files WHERE run = ?", (run,)).fetchone()
        return None if row is None else _SAVED.validate_python(json.loads(row[0]))

    def know(self, view: WorkspaceView, saved: SavedFiles) -> None:
        """Takes the versions of a view that was restored for those in the database."""
        version, base = view.saved()
        self._rows[base] = saved["base"]
        self._rows[version] = saved["version"]

    def restored(
        self, saved: SavedFiles, entries: Mapping[str, FileEntry], base: Mapping[str, FileEntry]
    ) -> WorkspaceView:
        """A view with these files. For any thread. Raises WorkspaceError; InvalidInput where the folder is gone."""
        workspace = Workspace(saved["folder"], exclude=saved["exclude"], max_bytes=saved["max_bytes"])
        return restored_view(workspace, entries, base, self.blobs)

    def _written(self, connection: sqlite3.Connection, view: WorkspaceView, version: Version) -> int:
        """Writes a version, as the difference from the nearest one before it that is there; returns its id."""
        changes: Changes = {}
        at, base = version, None
        while (base := self._rows.get(at)) is None:
            changes = {**at.changes, **changes}
            if not at.parents:
                break
            at = at.parents[0]
        if base is not None and at is version:
            return base
        for entry in changes.values():
            if entry is not None and entry.kind == "file":
                view.session.blobs.share(entry.data, self.blobs)
                if self._syncs:
                    self.blobs.sync(entry.data)
        row = connection.execute(
            "INSERT INTO file_versions (base, changes) VALUES (?, ?)", (base, json.dumps(changes))
        ).lastrowid
        assert row is not None
        self._rows[version] = row
        return row


def entries_of(connection: sqlite3.Connection, row: int) -> dict[str, FileEntry]:
    """What a version says. Raises ValueError."""
    chain: list[Changes] = []
    at: int | None = row
    while at is not None:
        found = connection.execute("SELECT base, changes FROM file_versions WHERE id = ?", (at,)).fetchone()
        if found is None or (found[0] is not None and found[0] >= at):
            raise ValueError(f"version {at} of files is not there, or builds on a later one")
        chain.append(_changes_of(found[1]))
        at = found[0]
    entries: dict[str, FileEntry] = {}
    for changes in reversed(chain):
        change(entries, changes)
    return entries


def folder_of(journal: Path) -> Path:
    """Folder with the contents of files of a journal."""
    return journal.with_name(f"{journal.name}-files")


def remove_unused_contents(connection: sqlite3.Connection, journal: Path) -> None:
    """Removes contents that no version needs any more, once those versions are gone for good."""
    if not folder_of(journal).is_dir():
        return
    needed: set[str] = set()
    for (row,) in connection.execute(f"SELECT id FROM ({USED_VERSIONS}) WHERE id IS NOT NULL").fetchall():
        needed |= {entry.data for entry in entries_of(connection, row).values()}
    blobs = BlobStore(folder_of(journal))
    blobs.remove_left()
    for digest in list(blobs.digests()):
        if digest not in needed:
            blobs.remove(digest)


def _changes_of(text: str) -> Changes:
    """Changes as they were written. Raises ValueError for paths that lead elsewhere, and for what is no entry."""
    return {
        path: None if entry is None else _checked(path, FileEntry(*entry))  # type: ignore[arg-type]
        for path, entry in _CHANGES.validate_python(json.loads(text)).items()  # which takes names that are no UTF-8
        if _is_path(path)
    }


def _is_path(path: str) -> bool:
    if "\0" in path or any(name in ("", ".", "..") for name in path.split("/")):
        raise ValueError(f"{path!r} is no path of a file in a workspace")
    return True


def _checked(path: str, entry: FileEntry) -> FileEntry:
    is_known = entry.kind in ("file", "link", "folder") and entry.mode == entry.mode & 0o777 and entry.size >= 0
    if not is_known or (entry.kind == "file" and not _DIGEST.fullmatch(entry.data)) or "\0" in entry.data:
        raise ValueError(f"the entry of {path!r} is no file, link or folder")
    return entry
