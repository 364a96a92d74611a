"""The files of a branch, for code that does not await."""

from __future__ import annotations

from pathlib import Path

from .._aio.loop_thread import LoopPortal
from ..workspaces.view import WorkspaceView
from .blocking import BlockingVerb


class SyncWorkspaceView:
    """The files of a branch; otherwise like `WorkspaceView`.

    Attributes:
        awaited: the view itself, for code on its event loop.
    """

    def __init__(self, view: WorkspaceView, loop: LoopPortal) -> None:
        """Private: use `SyncBranch.workspace`."""
        self.awaited = view
        self._loop = loop

    diff = BlockingVerb(WorkspaceView.diff)
    apply = BlockingVerb(WorkspaceView.apply)

    @property
    def path(self) -> Path:
        """Its folder, as `WorkspaceView.path`."""
        return self.awaited.path

    def __repr__(self) -> str:
        return repr(self.awaited)
