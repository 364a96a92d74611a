"""What a branch remembers of itself on the Python side: its tokens, and which marks still hold."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable

import numpy as np


class History:
    """The token log of one branch, kept equal to the engine's, and the record of its rewrites.

    A mark taken at time `t` with length `n` holds as long as no rewrite since `t` kept fewer than `n` tokens.
    `_floors_time` and `_floors_kept` both rise: since just before each time, so many tokens were kept at the least.
    """

    __slots__ = ("_floors_kept", "_floors_time", "log", "owner", "time")

    def __init__(self, log: bytes = b"") -> None:
        self.log = array("i", log)
        self.owner = object()  # of the marks of this history
        self.time = 0
        self._floors_time: list[int] = []
        self._floors_kept: list[int] = []

    def __len__(self) -> int:
        return len(self.log)

    def extend(self, tokens: Iterable[int]) -> None:
        """Adds tokens at the end."""
        self.log.extend(tokens)

    def truncate(self, length: int) -> None:
        """Forgets all but the first `length` tokens."""
        if length < len(self.log):
            self._record_rewrite(length)
            del self.log[length:]

    def replace(self, log: bytes) -> None:
        """Takes over other tokens; marks hold up to the common prefix."""
        other = array("i", log)
        common = common_prefix(self.log, other)
        if common < len(self.log):
            self._record_rewrite(common)
        self.log = other

    def kept_since(self, time: int) -> int | None:
        """The fewest tokens that any rewrite after `time` kept; None when there was none."""
        first = bisect_right(self._floors_time, time)
        return self._floors_kept[first] if first < len(self._floors_time) else None

    def _record_rewrite(self, kept: int) -> None:
        self.time += 1
        while self._floors_kept and self._floors_kept[-1] >= kept:
            self._floors_kept.pop()
            self._floors_time.pop()
        self._floors_kept.append(kept)
        self._floors_time.append(self.time)


def common_prefix(a: array[int], b: array[int]) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    if n == 0:
        return 0
    differ = np.frombuffer(a, np.int32, n) != np.frombuffer(b, np.int32, n)
    first = int(differ.argmax())
    return first if differ[first] else n
