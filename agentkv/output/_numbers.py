"""Numbers of JSON end: after so many digits a mask lets no more of them come.

Grammars cannot say so: llguidance has one expression for numbers, and bounds of values would take exponents away.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MOST_DIGITS = 15
"""Before the point, and behind it: doubles are exact to that, and so are the clients that read JSON."""
MOST_EXPONENT_DIGITS = 2

_Bits = NDArray[np.uint32]

_JSON = re.compile(r'"json_schema": \{|%json\s*\{')
_DIGITS = re.compile(r"(\d+)(?:\.\d+)?(?:[eE]\+?(\d{1,3}))?|\.(\d+)")
# Behind a quote or a letter it is part of a text.
_NUMBER = re.compile(rb"(?<![^\s:,(\[=>])-?(\d+)(?:\.(\d+))?(?:[eE][+-]?(\d+))?\Z")
_TEXT = re.compile(rb"[\"'A-DF-Za-df-z]")


def most_digits(grammar: str) -> int | None:
    """How many digits its numbers may have, which is as many as it spells itself; None for a grammar without JSON."""
    if not _JSON.search(grammar):
        return None
    spelled = (len(whole or part) + int(exponent or 0) for whole, exponent, part in _DIGITS.findall(grammar))
    return max(MOST_DIGITS, *spelled, 0)


class NumberTokens:
    """The tokens of a vocabulary that go on with a number."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._words = len(tokens) // 32 + 1
        self._digits = np.array([len(token) - len(token.lstrip(b"0123456789")) for token in tokens])
        self._longest = int(self._digits.max(initial=0))
        self._of_texts = self._bits(np.array([_TEXT.match(token) is not None for token in tokens], np.bool_))
        self._more_than = lru_cache(maxsize=None)(lambda left: self._bits(self._digits > left))

    def without_more(self, mask: _Bits, left: int) -> _Bits:
        """A mask without the tokens that have more digits; all of it in texts, where letters or a quote may come."""
        in_text = left >= self._longest or (mask & self._of_texts).any()
        return mask if in_text else mask & ~self._more_than(left)

    def _bits(self, chosen: NDArray[np.bool_]) -> _Bits:
        padded = np.zeros(self._words * 32, np.bool_)
        padded[: len(chosen)] = chosen
        return np.packbits(padded, bitorder="little").view(np.uint32)


def digits_left(before: bytes, most: int) -> int | None:
    """How many digits the number at the end of a text may still have; None where there is none."""
    number = _NUMBER.search(before)
    if number is None:
        return None
    whole, part, exponent = number.groups()
    if exponent is not None:
        return max(MOST_EXPONENT_DIGITS - len(exponent), 0)
    return max(most - len(part or whole), 0)
