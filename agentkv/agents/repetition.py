"""Detection of text that repeats itself."""

from __future__ import annotations

from collections.abc import Iterable

TIMES = 6
LEAST = 256
_EVERY = 32
_READ = 2048  # tokens of the end that are looked at


class Repetition:
    """Detects a text that ends in `TIMES` or more repetitions of one period, of `LEAST` tokens or more in all.

    Tables, lists and code repeat words and not whole periods, or stop before that: a table's rule has some dozens of
    tokens, ten by ten zeros have about 200.

    Attributes:
        period: length in tokens of the period that was found; 0 before.
    """

    def __init__(self) -> None:
        self.period = 0
        self._tokens: list[int] = []
        self._due = LEAST

    def take(self, tokens: Iterable[int]) -> bool:
        """Reads more tokens. Returns whether the text repeats itself."""
        before = len(self._tokens)
        self._tokens += tokens
        self._due -= len(self._tokens) - before
        if self._due <= 0:
            self._due = _EVERY
            self._tokens = self._tokens[-_READ:]
            self.period = self.period or period_of_end(self._tokens)
        return self.period > 0


def period_of_end(tokens: list[int], times: int = TIMES, least: int = LEAST) -> int:
    """Shortest period that ends the text `times` times or more, over `least` tokens or more; 0 where there is none.

    Linear time: borders (KMP) of the reversed text.
    """
    backwards = tokens[::-1]
    borders = [0] * len(backwards)
    for length in range(1, len(backwards)):
        border = borders[length - 1]
        while border and backwards[length] != backwards[border]:
            border = borders[border - 1]
        borders[length] = border + (backwards[length] == backwards[border])
        whole = length + 1
        period = whole - borders[length]
        if whole >= least and whole >= times * period:
            return period
    return 0
