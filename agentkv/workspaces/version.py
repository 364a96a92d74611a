"""States of a workspace's files, each the difference from the one before it."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from itertools import count

from .entries import Changes, FileEntry, change

_number = count()
_BOTH = 1 | 2


class Version:
    """The files of a view at one moment. Versions are compared by identity.

    Attributes:
        parents: the version that it changes; behind it, one that was merged into that. Empty for a first one.
        changes: what it changes in the first of them.
        generation: number greater than that of any version before it.
    """

    __slots__ = ("__weakref__", "changes", "generation", "parents")

    def __init__(self, changes: Mapping[str, FileEntry | None], *parents: Version) -> None:
        self.changes: Changes = dict(changes)
        self.parents = parents
        self.generation = next(_number)

    def manifest(self) -> dict[str, FileEntry]:
        """All entries, by path."""
        chain, at = [self], self
        while at.parents:
            at = at.parents[0]
            chain.append(at)
        entries: dict[str, FileEntry] = {}
        for version in reversed(chain):
            change(entries, version.changes)
        return entries


def merge_base(one: Version, other: Version) -> Version | None:
    """The latest version that both come from; None where they have none in common."""
    versions, sides = {one.generation: one, other.generation: other}, {one.generation: 1}
    sides[other.generation] = sides.get(other.generation, 0) | 2
    queue = [-generation for generation in versions]
    heapq.heapify(queue)
    while queue:
        generation = -heapq.heappop(queue)
        version, side = versions[generation], sides[generation]
        if side == _BOTH:
            return version
        for parent in version.parents:  # each is older, so that a version is taken once both sides have come to it
            if parent.generation not in versions:
                versions[parent.generation] = parent
                heapq.heappush(queue, -parent.generation)
            sides[parent.generation] = sides.get(parent.generation, 0) | side
    return None
