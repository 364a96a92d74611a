"""Epochs of a log's tokens, by the native engine's rule, for logs in this process."""

from __future__ import annotations

from bisect import bisect_left


class Lineage:
    """Segments of a log, each from a length on and of one epoch. A length and its epoch identify a history."""

    def __init__(self, stretches: list[tuple[int, int]] | None = None) -> None:
        self._stretches = stretches or []

    def copy(self) -> Lineage:
        """Returns an independent copy."""
        return Lineage(self._stretches.copy())

    def at(self, length: int) -> int:
        """Epoch of the last of the first `length` tokens; 0 where there is none."""
        behind = bisect_left(self._stretches, (length, 0))
        return self._stretches[behind - 1][1] if behind else 0

    def stretches(self, length: int) -> list[tuple[int, int, int]]:
        """(epoch, first, last) of the positions below `length`: those of one epoch are the same in every log."""
        ends = [first for first, _ in self._stretches[1:]] + [length]
        pairs = zip(self._stretches, ends, strict=True)
        return [(epoch, first, min(last, length)) for (first, epoch), last in pairs if first < min(last, length)]

    def cut(self, length: int, epoch: int) -> None:
        """Begins a segment of this epoch after `length` tokens."""
        del self._stretches[bisect_left(self._stretches, (length, 0)) :]
        if not self._stretches or self._stretches[-1][1] != epoch:
            self._stretches.append((length, epoch))

    def go_on_as(self, other: Lineage, length: int) -> None:
        """Takes over another log's segments after the first `length` tokens, which both share."""
        self.cut(length, other.at(length + 1))
        self._stretches += [stretch for stretch in other._stretches if stretch[0] > length]
