"""State of an open branch that its Branch and the views of it in a turn share."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._branch import Branch
    from ._loading import Loaded
    from ._overflow import Overflow


class BranchRecord:
    """State of one branch, shared by the Branch that users hold and by every view of it. Once nobody refers to it, the
    engine's branch is released.

    Attributes:
        overflow: policy that makes room.
        reused: tokens that were in the cache when the branch began.
        loaded: origin of the cells of a branch that was loaded from a file.
        closed: whether it was closed.
        parent: weak reference to the branch that it was forked from; None for a root.
    """

    __slots__ = ("__weakref__", "_branch", "_finalizer", "closed", "loaded", "overflow", "parent", "reused")

    def __init__(self, branch: Branch, parent: Branch | None, overflow: Overflow, reused: int) -> None:
        self._branch = weakref.ref(branch)
        self._finalizer = weakref.finalize(self, branch._loop.release, branch.id)
        self._finalizer.atexit = False
        self.overflow = overflow
        self.reused = reused
        self.loaded: Loaded | None = None
        self.closed = False
        self.parent = None if parent is None else parent._record._branch

    @property
    def branch(self) -> Branch | None:
        """The Branch itself; None where only views are left."""
        return self._branch()

    def close(self) -> bool:
        """Marks it as closed, which its closer tells the engine. False where it was closed before."""
        was_open = not self.closed
        self.closed = True
        self._finalizer.detach()
        return was_open
