"""The open branches of a Context."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .branch import Branch


class BranchRegistry:
    """Weak references to the open branches. Hidden ones, such as prompts of agents, are not shown to users."""

    def __init__(self) -> None:
        self._shown: weakref.WeakValueDictionary[int, Branch] = weakref.WeakValueDictionary()
        self._hidden: weakref.WeakValueDictionary[int, Branch] = weakref.WeakValueDictionary()

    def add(self, branch: Branch) -> None:
        """Adds a new branch."""
        self._shown[branch.id] = branch

    def hide(self, branch: Branch) -> None:
        """Hides a branch from users."""
        self._hidden[branch.id] = branch
        self._shown.pop(branch.id, None)

    def remove(self, branch: Branch) -> None:
        """Removes a closed branch. Idempotent."""
        self._shown.pop(branch.id, None)
        self._hidden.pop(branch.id, None)

    def live(self) -> list[Branch]:
        """Branches shown to users, oldest first."""
        return [branch for _, branch in sorted(self._shown.items())]

    def every(self) -> list[Branch]:
        """All open branches, hidden ones last."""
        return [*self.live(), *self._hidden.values()]
