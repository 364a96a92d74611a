"""The files of one branch: a copy of a workspace's folder that is its own, made when it is first needed."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from anyio import to_thread

from .._types.errors import BranchClosed, InvalidInput, WorkspaceError
from .diff import WorkspaceDiff, difference
from .entries import FileEntry, changes_between
from .merge import Merge, State
from .session import remove_all
from .version import Version

if TYPE_CHECKING:
    from .session import Session
    from .tree import Tree
    from .workspace import Workspace


ATTEMPTS = 3  # at taking files back while something else writes to them


class WorkspaceView:
    """The files of one branch. `Branch.workspace` is one.

    A fork's files are those of its branch at that moment, and copied when `path` is first asked for.

    Attributes:
        workspace: the workspace that they are of.
    """

    def __init__(
        self,
        workspace: Workspace,
        session: Session,
        path: Path,
        version: Version,
        base: Version,
        entries: Mapping[str, FileEntry] | None = None,
    ) -> None:
        """Private: see `Context.branch`."""
        self.workspace = workspace
        self.session = session
        self.base = base
        self._path = path
        self._tree: Tree | None = None
        self._version = version
        self._entries = version.manifest() if entries is None else entries
        self._owed = False  # the folder is not yet as `_entries` say
        self._first = version
        self._marks: list[tuple[int, Version]] = []
        self._lock = threading.RLock()
        self.on_apply: Callable[[], Awaitable[None]] | None = None  # a journal that records it
        self._finalizer = weakref.finalize(self, session.end_view, path)
        self._finalizer.atexit = False  # the session has an end of its own

    def __repr__(self) -> str:
        return f"<WorkspaceView of {self.workspace.folder}{', closed' if self.closed else ''}>"

    @property
    def closed(self) -> bool:
        """Whether its branch is closed."""
        return not self._finalizer.alive

    @property
    def path(self) -> Path:
        """Its folder. It is made when this is first asked for, which takes a second for ten thousand files: `ready`
        makes it without blocking the event loop.

        Raises:
            BranchClosed: its branch is closed.
            WorkspaceError: the files cannot be written.
        """
        with self._whole():
            self._made()
            assert self._tree is not None
            with self._tree.root():  # made anew where something removed it
                return self._path

    async def ready(self) -> Path:
        """Makes the folder where it is not there yet, and returns `path`. Raises as that does."""
        return await to_thread.run_sync(lambda: self.path)

    async def diff(self) -> WorkspaceDiff:
        """What changed since the branch began, or since it was applied last. Raises as `path` does."""
        return await to_thread.run_sync(self._diff)

    async def apply(self) -> list[str]:
        """Makes what changed here change in the workspace's own folder, and returns the paths. Files that changed there
        meanwhile stay as they are.

        Raises:
            WorkspaceConflict: there, too, some of the same files changed, and not alike; nothing was changed.
            WorkspaceError: a file cannot be read or written.
            JournalError: it is done, and the journal that has the branch cannot be written.
        """
        paths = await to_thread.run_sync(self._apply)
        if self.on_apply is not None:
            await self.on_apply()
        return paths

    # For branches; callable from any thread.

    def mark(self, length: int) -> Version:
        """The version of now, found again by the number of tokens of its branch. Raises WorkspaceError."""
        with self._whole():
            version = self._checked_in()
            if not self._marks or self._marks[-1] != (length, version):
                self._marks.append((length, version))
            return version

    def version_at(self, length: int) -> Version:
        """The last version that was marked when the branch had at most this number of tokens."""
        at = bisect_right(self._marks, length, key=lambda mark: mark[0])
        return self._marks[at - 1][1] if at else self._first

    def forks(self, count: int, length: int) -> list[WorkspaceView]:
        """Views that begin with the files of now. Raises WorkspaceError."""
        version = self.mark(length)
        return [self._fork(version) for _ in range(count)]

    def _fork(self, version: Version) -> WorkspaceView:
        path = self.session.begin_view()
        assert path is not None  # this view keeps the session
        return WorkspaceView(self.workspace, self.session, path, version, version, self._entries)

    def go_back(self, version: Version, length: int) -> None:
        """Makes the files those of a version. Raises WorkspaceError; the next use of the files tries again then."""
        with self._whole(settle=False):
            self._forget_marks(length, version)
            self._become(version, version.manifest())

    def merged_with(self, other: WorkspaceView) -> Merge:
        """Both views' changes together, for `take`.

        Raises WorkspaceConflict, WorkspaceError; InvalidInput for a view of another workspace.
        """
        if other.session is not self.session:
            raise InvalidInput(
                f"the branches work in {self.workspace.folder} and in {other.workspace.folder}, as different "
                "workspaces; adopt a branch of the same Workspace, or one without"
            )
        theirs, ours = other._now(), self._now()
        return Merge.of(ours, theirs, other.base, "both branches changed that since the one came from the other")

    def take(self, merge: Merge, length: int) -> None:
        """Makes the files those of a merge, with what was written since that was made. Raises as `go_back` does."""
        with self._whole(settle=False):
            self._forget_marks(length, merge.version)
            self._version, self._entries = merge.version, merge.entries
            if self._tree is None:
                return
            self._owed = True
            now = self._tree.read()
            wanted = merge.on(now)
            if late := changes_between(merge.entries, wanted):
                self._version, self._entries = Version(late, merge.version), wanted
            self._tree.write(changes_between(now, wanted))
            self._owed = False

    def close(self) -> None:
        """Removes the folder. Idempotent."""
        self._finalizer()

    def saved(self) -> tuple[Version, Version]:
        """The versions of now and of its beginning, for a journal. Raises WorkspaceError."""
        with self._whole():
            return self._checked_in(), self.base

    def _diff(self) -> WorkspaceDiff:
        with self._whole():
            self._checked_in()
            old, new = self.base.manifest(), self._entries
        return difference(old, new, self.session.blobs)

    def _apply(self) -> list[str]:
        with self._whole():
            mine = State(self._checked_in(), self._entries)
            paths = self.session.origin.apply(mine, self.base)
            self.base = mine.version
            return paths

    def _now(self) -> State:
        with self._whole():
            return State(self._checked_in(), self._entries)

    def _checked_in(self) -> Version:
        """The version of now, a new one where something was changed."""
        if self._tree is not None:
            entries = self._tree.read()
            if changes := changes_between(self._entries, entries):
                self._version = Version(changes, self._version)
            self._entries = entries
        return self._version

    def _forget_marks(self, length: int, version: Version) -> None:
        """Forgets marks of what is no more: those behind a length, and behind a version that is marked."""
        self._marks = [mark for mark in self._marks if mark[0] <= length]
        if any(marked is version for _, marked in self._marks):
            while self._marks[-1][1] is not version:
                self._marks.pop()

    def _become(self, version: Version, entries: Mapping[str, FileEntry]) -> None:
        self._version, self._entries = version, entries
        self._owed = self._tree is not None
        self._settle()

    def _settle(self) -> None:
        """Has the folder be as it is to be, where a failure kept it from that."""
        for left in reversed(range(ATTEMPTS if self._owed and self._tree is not None else 0)):
            assert self._tree is not None
            try:
                self._tree.write(self._tree.differs_from(self._entries))
            except WorkspaceError:
                if left == 0:
                    raise
            else:
                self._owed = False
                return

    def _made(self) -> None:
        """Makes the folder with all files."""
        if self._tree is not None:
            return
        tree = self.session.tree(self._path)
        try:
            tree.write(dict(self._entries))
        except BaseException:
            remove_all(self._path)
            raise
        tree.trust()
        self._tree = tree

    @contextmanager
    def _whole(self, *, settle: bool = True) -> Iterator[None]:
        """Scope in which the files are used by one thread."""
        with self._lock:
            if self.closed:
                raise BranchClosed("the branch of these files is closed, and they are removed; use a live branch")
            if settle:
                self._settle()
            yield
