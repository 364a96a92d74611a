"""Which tokens a branch wrote one after another: the native engine's rule, for logs that are kept here."""

from __future__ import annotations

from bisect import bisect_left


class Lineage:
    """Stretches of a log, each behind a length and of one epoch. A length and its epoch name a history."""

    def __init__(self, stretches: list[tuple[int, int]] | None = None) -> None:
        self._stretches = stretches or []

    def copy(self) -> Lineage:
        """The same, to be changed."""
        return Lineage(self._stretches.copy())

    def at(self, length: int) -> int:
        """The epoch of the last of so many tokens; 0 where there is none."""
        behind = bisect_left(self._stretches, (length, 0))
        return self._stretches[behind - 1][1] if behind else 0

    def stretches(self, length: int) -> list[tuple[int, int, int]]:
        """(epoch, first, last) of the positions below `length`: those of one epoch are the same in every log."""
        ends = [first for first, _ in self._stretches[1:]] + [length]
        pairs = zip(self._stretches, ends, strict=True)
        return [(epoch, first, min(last, length)) for (first, epoch), last in pairs if first < min(last, length)]

    def cut(self, length: int, epoch: int) -> None:
        """What comes after so many tokens is of this epoch."""
        del self._stretches[bisect_left(self._stretches, (length, 0)) :]
        if not self._stretches or self._stretches[-1][1] != epoch:
            self._stretches.append((length, epoch))

    def go_on_as(self, other: Lineage, length: int) -> None:
        """The log is another's behind so many tokens, which both have."""
        self.cut(length, other.at(length + 1))
        self._stretches += [stretch for stretch in other._stretches if stretch[0] > length]
