"""Branches that a search makes as it goes: whatever is not taken from it is closed in the end."""

from __future__ import annotations

from collections.abc import Iterable

from .._branch import Branch


class Grove:
    """A context manager that owns branches."""

    def __init__(self) -> None:
        self._branches: list[Branch] = []

    async def __aenter__(self) -> Grove:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.prune()

    def add(self, branch: Branch) -> Branch:
        """From now on it closes this branch."""
        self._branches.append(branch)
        return branch

    def take(self, branch: Branch) -> Branch:
        """The branch is the caller's."""
        self._branches.remove(branch)
        return branch

    def prune(self, kept: Iterable[Branch] = ()) -> None:
        """Closes all but these; their cells are free before the next forward."""
        living = list(kept)
        for branch in self._branches:
            if branch not in living:
                branch.close()
        self._branches = living
