"""Branches by name, as a tree."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from .._types.errors import InvalidInput, TooManyBranches

if TYPE_CHECKING:
    from .branch import Branch

T = TypeVar("T")


@dataclass(slots=True)
class NamedBranch(Generic[T]):
    """A branch with a name.

    Attributes:
        name: unique within its collection.
        branch: the branch.
        data: the owner's data.
        parent: name of the branch that it was forked from; None for a root.
    """

    name: str
    branch: Branch
    data: T
    parent: str | None = None


class NamedBranches(Generic[T]):
    """Branches by name, oldest first. Branches closed elsewhere disappear.

    Args:
        limit: maximum number of branches at a time; None for any number.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._entries: dict[str, NamedBranch[T]] = {}
        self._coming = 0

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[NamedBranch[T]]:
        return iter([entry for entry in self._entries.values() if not entry.branch.closed])

    def add(self, name: str, branch: Branch, data: T, parent: str | None = None) -> NamedBranch[T]:
        """Adds a branch under a name, which must be free."""
        entry = self._entries[name] = NamedBranch(name, branch, data, parent)
        return entry

    def get(self, name: str) -> NamedBranch[T]:
        """The entry of a name. Raises InvalidInput if no open branch has it."""
        entry = self._entries.get(name)
        if entry is None or entry.branch.closed:
            raise InvalidInput(f"there is no branch {name!r}; there are: {', '.join(self.names()) or 'none yet'}")
        return entry

    def names(self) -> list[str]:
        """Names of the open branches, oldest first."""
        return [entry.name for entry in self]

    def free_name(self, stem: str) -> str:
        """The stem with the lowest number that is not taken."""
        return next(name for n in itertools.count(1) if (name := f"{stem}{n}") not in self)

    @contextmanager
    def reserve(self, n: int) -> Iterator[None]:
        """Reserves room for `n` branches that the block makes. Raises TooManyBranches."""
        self.check_room(n)
        self._coming += n
        try:
            yield
        finally:
            self._coming -= n

    def check_room(self, n: int) -> None:
        """Raises TooManyBranches if `n` more exceed the limit."""
        live = len(self.names()) + self._coming
        if self._limit is not None and live + n > self._limit:
            raise TooManyBranches(f"{live} of {self._limit} branches are open: no room for {n} more; close some")

    async def close(self, name: str) -> None:
        """Closes a branch; its forks become children of its parent. Raises InvalidInput."""
        closed = self.get(name)
        del self._entries[name]
        for entry in self._entries.values():
            if entry.parent == name:
                entry.parent = closed.parent
        await closed.branch.close()

    def tree(self) -> list[tuple[int, NamedBranch[T]]]:
        """Open branches in tree order, each with its depth below a root."""
        live, found = list(self), list[tuple[int, NamedBranch[T]]]()
        names = {entry.name for entry in live}

        def walk(parent: str | None, depth: int) -> None:
            for entry in live:
                if (entry.parent if entry.parent in names else None) == parent:
                    found.append((depth, entry))
                    walk(entry.name, depth + 1)

        walk(None, 0)
        return found

    def path(self, name: str) -> str:
        """Names from the root down to this branch, joined by '/'."""
        parent = self._entries[name].parent
        return name if parent is None else f"{self.path(parent)}/{name}"
