"""Workspace: a folder of the user's, whose files branches have copies of."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .._types.checks import checked_count, checked_path, checked_text
from .._types.errors import InvalidInput, WorkspaceError
from .._types.show import preview
from .blobs import BlobStore
from .entries import FileEntry
from .session import Session
from .view import WorkspaceView

_sessions: weakref.WeakValueDictionary[Workspace, Session] = weakref.WeakValueDictionary()
_opening = threading.Lock()


class Workspace:
    """A folder whose files move with branches: `await ctx.branch(..., workspace=kv.Workspace("my-project"))`.

    Each branch works on files of its own, `Branch.workspace`, which begin as the folder's, or as those of the branch
    that it was forked from. The folder itself changes only by `WorkspaceView.apply`. Two that are made alike are equal.

    Pipes, sockets and devices are no files of a workspace; a link stays a link.

    Args:
        folder: the folder.
        exclude: patterns of names, or of paths from the folder on, with `*` and `?`: what branches have no copy of.
        max_bytes: most bytes of all files, which guards the disk.

    Raises:
        InvalidInput: an invalid argument, no folder, or a system that workspaces do not work on (Windows).
    """

    def __init__(self, folder: str | Path, *, exclude: Iterable[str] = (".git",), max_bytes: int = 2**30) -> None:
        if os.open not in os.supports_dir_fd:
            raise InvalidInput(
                "this system opens no files beneath an open folder, which workspaces need; Linux and macOS do"
            )
        self.folder = Path(checked_path(folder, "folder", "the path of a folder")).resolve()
        if not self.folder.is_dir():
            what = "is a file; give its folder" if self.folder.exists() else "does not exist; make it"
            raise InvalidInput(f"the folder {self.folder} {what}, or give the path of another")
        if isinstance(exclude, str):
            raise InvalidInput(f"exclude is {preview(exclude)}, but it must be a list of patterns")
        self.exclude = tuple(checked_text(pattern, "exclude") for pattern in exclude)
        self.max_bytes = checked_count(max_bytes, "max_bytes", 1)

    def __repr__(self) -> str:
        return f"Workspace({str(self.folder)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workspace) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[Path, tuple[str, ...], int]:
        return self.folder, self.exclude, self.max_bytes


def begin_view(workspace: Workspace) -> WorkspaceView:
    """A view that begins with the folder's files. For a thread: reads them. Raises WorkspaceError."""
    with _place(workspace) as (session, path):
        version = session.origin.read()
        return WorkspaceView(workspace, session, path, version, version)


def restored_view(
    workspace: Workspace, entries: Mapping[str, FileEntry], base: Mapping[str, FileEntry], blobs: BlobStore
) -> WorkspaceView:
    """A view with files that were recorded, and those that it began with. For a thread.

    Raises WorkspaceError where a content is missing.
    """
    with _place(workspace) as (session, path):
        for entry in {entry.data: entry for entry in [*entries.values(), *base.values()]}.values():
            if entry.kind == "file":
                try:
                    blobs.share(entry.data, session.blobs)
                except OSError as error:
                    raise WorkspaceError(f"recorded files of {workspace.folder} are missing: {error}") from error
        begin = session.recorded(base)
        return WorkspaceView(workspace, session, path, session.recorded(entries, begin), begin)


@contextmanager
def _place(workspace: Workspace) -> Iterator[tuple[Session, Path]]:
    """The session of a workspace, and a place for one more view in it."""
    with _opening:
        session = _sessions.get(workspace)
        path = None if session is None else session.begin_view()
        if session is None or path is None:  # its last view has ended, and takes it along
            session = _sessions[workspace] = Session(workspace.folder, workspace.exclude, workspace.max_bytes)
            path = session.begin_view()
    assert path is not None  # of a new session
    try:
        yield session, path
    except BaseException:
        session.end_view(path)
        raise
