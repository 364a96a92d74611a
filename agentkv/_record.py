"""State of an open branch that its Branch and the views of it in a turn share."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._branch import Branch
    from ._history import History
    from ._home import Home
    from ._loading import Loaded
    from ._overflow import Overflow


class BranchRecord:
    """State of one branch, shared by the Branch that users hold and by every view of it. Once nobody refers to it, the
    engine's branch is released.

    Attributes:
        core: services of its Context.
        state: its tokens and conversation.
        overflow: policy that makes room.
        reused: tokens that were in the cache when the branch began.
        loaded: origin of the cells of a branch that was loaded from a file.
        closed: whether it was closed.
        branch: weak reference to the Branch itself, which may be gone where views are left.
        parent: weak reference to the branch that it was forked from; None for a root.
    """

    __slots__ = (
        "__weakref__",
        "_finalizer",
        "branch",
        "closed",
        "core",
        "loaded",
        "overflow",
        "parent",
        "reused",
        "state",
    )

    def __init__(self, core: Home, state: History, overflow: Overflow, reused: int) -> None:
        self.core = core
        self.state = state
        self._finalizer = weakref.finalize(self, core.loop.release, state.id)
        self._finalizer.atexit = False
        self.overflow = overflow
        self.reused = reused
        self.loaded: Loaded | None = None
        self.closed = False
        self.branch: weakref.ref[Branch] | None = None
        self.parent: weakref.ref[Branch] | None = None

    def close(self) -> bool:
        """Marks it as closed, which its closer tells the engine. False where it was closed before."""
        was_open = not self.closed
        self.closed = True
        self._finalizer.detach()
        return was_open
