"""Bound on the digits of JSON numbers: masks stop a number after the allowed digits.

Grammars cannot express it: llguidance has one expression for numbers, and bounds of values would exclude exponents.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MOST_DIGITS = 15
"""Most digits before the point, and after it: doubles, and so JSON clients, are exact up to this."""
MOST_EXPONENT_DIGITS = 2

_Bits = NDArray[np.uint32]

_JSON = re.compile(r'"json_schema": \{|%json\s*\{')
_DIGITS = re.compile(r"(\d+)(?:\.\d+)?(?:[eE]\+?(\d{1,3}))?|\.(\d+)")
# After a quote or a letter, digits are part of a text.
_NUMBER = re.compile(rb"(?<![^\s:,(\[=>])-?(\d+)(?:\.(\d+))?(?:[eE][+-]?(\d+))?\Z")
_TEXT = re.compile(rb"[\"'A-DF-Za-df-z]")


def most_digits(grammar: str) -> int | None:
    """Most digits of the grammar's numbers: 15, or more where it spells longer ones. None for one without JSON."""
    if not _JSON.search(grammar):
        return None
    spelled = (len(whole or part) + int(exponent or 0) for whole, exponent, part in _DIGITS.findall(grammar))
    return max(MOST_DIGITS, *spelled, 0)


class NumberTokens:
    """Tokens of a vocabulary that continue a number."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._words = len(tokens) // 32 + 1
        self._digits = np.array([len(token) - len(token.lstrip(b"0123456789")) for token in tokens])
        self._longest = int(self._digits.max(initial=0))
        self._of_texts = self._bits(np.array([_TEXT.match(token) is not None for token in tokens], np.bool_))
        self._more_than = lru_cache(maxsize=None)(lambda left: self._bits(self._digits > left))

    def without_more(self, mask: _Bits, left: int) -> _Bits:
        """The mask without tokens of more than `left` digits; unchanged within texts, where letters may come."""
        in_text = left >= self._longest or (mask & self._of_texts).any()
        return mask if in_text else mask & ~self._more_than(left)

    def _bits(self, chosen: NDArray[np.bool_]) -> _Bits:
        padded = np.zeros(self._words * 32, np.bool_)
        padded[: len(chosen)] = chosen
        return np.packbits(padded, bitorder="little").view(np.uint32)


def digits_left(before: bytes, most: int) -> int | None:
    """Number of digits that may still follow the number at the end of a text; None where there is no number."""
    number = _NUMBER.search(before)
    if number is None:
        return None
    whole, part, exponent = number.groups()
    if exponent is not None:
        return max(MOST_EXPONENT_DIGITS - len(exponent), 0)
    return max(most - len(part or whole), 0)
