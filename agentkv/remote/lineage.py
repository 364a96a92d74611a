"""Epochs of a log's tokens, by the native engine's rule, for logs in this process; and the tokens that logs share."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import TypeAlias

Segment: TypeAlias = tuple[int, int, int]
"""(epoch, first, last): positions [first, last) of an epoch are the same tokens in every log."""


class Lineage:
    """Segments of a log, each from a length on and of one epoch. A length and its epoch identify a history."""

    def __init__(self, segments: list[tuple[int, int]] | None = None) -> None:
        self._segments = segments or []

    def copy(self) -> Lineage:
        """Returns an independent copy."""
        return Lineage(self._segments.copy())

    def at(self, length: int) -> int:
        """Epoch of the last of the first `length` tokens; 0 where there is none."""
        behind = bisect_left(self._segments, (length, 0))
        return self._segments[behind - 1][1] if behind else 0

    def segments(self, length: int) -> list[Segment]:
        """Segments of the positions below `length`."""
        ends = [first for first, _ in self._segments[1:]] + [length]
        pairs = zip(self._segments, ends, strict=True)
        return [(epoch, first, min(last, length)) for (first, epoch), last in pairs if first < min(last, length)]

    def cut(self, length: int, epoch: int) -> None:
        """Begins a segment of this epoch after `length` tokens."""
        del self._segments[bisect_left(self._segments, (length, 0)) :]
        if not self._segments or self._segments[-1][1] != epoch:
            self._segments.append((length, epoch))

    def continue_as(self, other: Lineage, length: int) -> None:
        """Takes over another log's segments after the first `length` tokens, which both share."""
        self.cut(length, other.at(length + 1))
        self._segments += [segment for segment in other._segments if segment[0] > length]


class SharedTokenCount:
    """Counts tokens incrementally: the cost depends on the change, not on the number of branches.

    Attributes:
        total: number of distinct tokens in all branches.
        shared: number of those that two or more branches share.
    """

    def __init__(self) -> None:
        self.total = self.shared = 0
        self._segments: dict[int, set[Segment]] = {}  # by branch
        # For each epoch, by position: change in the number of branches that have the positions from there on.
        self._steps: dict[int, Counter[int]] = defaultdict(Counter)
        self._counts: dict[int, tuple[int, int]] = {}  # by epoch: total, shared

    def count(self, branch: int, segments: list[Segment]) -> None:
        """Sets the current segments of a branch; none for one that is closed."""
        before, now = self._segments.pop(branch, set()), set(segments)
        if now:
            self._segments[branch] = now
        for sign, some in ((1, now - before), (-1, before - now)):
            for epoch, first, last in some:
                self._steps[epoch][first] += sign
                self._steps[epoch][last] -= sign
        for epoch in {segment[0] for segment in now ^ before}:
            self._recount(epoch)

    def _recount(self, epoch: int) -> None:
        steps = self._steps[epoch]
        total = shared = holders = before = 0
        for position in sorted(steps):
            total += (position - before) * (holders > 0)
            shared += (position - before) * (holders > 1)
            holders += steps[position]
            before = position
            if not steps[position]:
                del steps[position]
        old_total, old_shared = self._counts.pop(epoch, (0, 0))
        self.total += total - old_total
        self.shared += shared - old_shared
        if steps:
            self._counts[epoch] = (total, shared)
        else:
            del self._steps[epoch]
