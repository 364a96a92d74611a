"""Number of tokens in the live branches, with shared ones counted once."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TypeAlias

Stretch: TypeAlias = tuple[int, int, int]
"""(epoch, first, last): positions [first, last) of an epoch are the same tokens in every log."""


class SharedTokenCount:
    """Counts tokens incrementally: the cost depends on the change, not on the number of branches.

    Attributes:
        held: number of distinct tokens in all branches.
        shared: number of those that two or more branches share.
    """

    def __init__(self) -> None:
        self.held = self.shared = 0
        self._stretches: dict[int, set[Stretch]] = {}  # by branch
        # For each epoch, by position: change in the number of branches that have the positions from there on.
        self._steps: dict[int, Counter[int]] = defaultdict(Counter)
        self._counts: dict[int, tuple[int, int]] = {}  # by epoch: held, shared

    def count(self, branch: int, stretches: list[Stretch]) -> None:
        """Sets the current stretches of a branch; none for one that is closed."""
        before, now = self._stretches.pop(branch, set()), set(stretches)
        if now:
            self._stretches[branch] = now
        for sign, some in ((1, now - before), (-1, before - now)):
            for epoch, first, last in some:
                self._steps[epoch][first] += sign
                self._steps[epoch][last] -= sign
        for epoch in {stretch[0] for stretch in now ^ before}:
            self._recount(epoch)

    def _recount(self, epoch: int) -> None:
        steps = self._steps[epoch]
        held = shared = holders = before = 0
        for position in sorted(steps):
            held += (position - before) * (holders > 0)
            shared += (position - before) * (holders > 1)
            holders += steps[position]
            before = position
            if not steps[position]:
                del steps[position]
        old_held, old_shared = self._counts.pop(epoch, (0, 0))
        self.held += held - old_held
        self.shared += shared - old_shared
        if steps:
            self._counts[epoch] = (held, shared)
        else:
            del self._steps[epoch]
