"""Search for stop strings in a generation that comes token by token, as in the native engine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence


class StopMatcher:
    """Finds stop strings in one generation. Text that may begin a stop string is delayed until that is known.

    A special token is not part of the text. A stop string that spells it out matches the token, and the same
    characters as text.
    """

    def __init__(self, stops: Sequence[str], special: Mapping[int, bytes] | None = None) -> None:
        """`special`: spelling of each special token, by id."""
        plain = [_characters(stop.encode()) for stop in stops]
        spelled = {i: _characters(piece) for i, piece in (special or {}).items()}
        used = {i: text for i, text in spelled.items() if text and any(text in stop for stop in plain)}
        self._signs = {i: chr(256 + n) for n, i in enumerate(used)}  # one character for each
        self._stops = list(dict.fromkeys([*plain, *_signed(plain, {used[i]: self._signs[i] for i in used})]))
        self._longest = max(map(len, self._stops), default=0)
        self._text = bytearray()
        self._tail = ""  # that may begin a stop string
        self._shown = 0
        self.cut = 0
        """Number of bytes of the stop string that were text."""

    @property
    def text(self) -> bytes:
        """The text so far, without the stop string."""
        return bytes(self._text) + _text_of(self._tail)

    def push(self, piece: bytes) -> bool:
        """Adds bytes of text. Returns True where a stop string is complete: the text ends before it."""
        if not self._stops:
            self._text += piece
            return False
        return self._take(_characters(piece))

    def push_special(self, token: int) -> bool:
        """Adds a special token, as `push` does bytes. Ignores one that no stop string continues with."""
        sign = self._signs.get(token)
        if sign is None or not self._begun(self._tail + sign, whole=True):
            return False
        return self._take(sign)

    def _take(self, characters: str) -> bool:
        tail = self._tail + characters
        ends = [at + len(stop) for stop in self._stops if (at := tail.find(stop)) >= 0]
        if ends:
            end = min(ends)  # the one that is complete first, and of several that end there the longest
            length = max(len(stop) for stop in self._stops if tail[:end].endswith(stop))
            self._text += _text_of(tail[: end - length])
            self.cut = len(_text_of(tail[end - length : end]))
            self._tail = ""
            return True
        held = len(tail) - self._begun(tail)
        self._text += _text_of(tail[:held])
        self._tail = tail[held:]
        return False

    def _begun(self, tail: str, whole: bool = False) -> int:
        """Length of the longest end of `tail` that begins a stop string, or with `whole` may be a complete one."""
        most = min(self._longest, len(tail))
        lengths = range(most, 0, -1)
        return next(
            (k for k in lengths if any(s.startswith(tail[-k:]) and (whole or len(s) > k) for s in self._stops)), 0
        )

    def finish(self) -> None:
        """Ends the generation: delayed text is text."""
        self._text += _text_of(self._tail)
        self._tail = ""

    def take_shown(self) -> bytes:
        """Takes the bytes that are certainly text, and that were not taken before."""
        shown, self._shown = bytes(self._text[self._shown :]), len(self._text)
        return shown


def _characters(data: bytes) -> str:
    """One character for each byte."""
    return data.decode("latin-1")


def _text_of(characters: str) -> bytes:
    """Bytes of the characters, without the signs of special tokens."""
    return "".join(c for c in characters if c < "\u0100").encode("latin-1")


def _signed(stops: Sequence[str], signs: Mapping[str, str]) -> list[str]:
    """Stop strings with the signs of special tokens in place of their spellings, the longest first."""
    if not signs:
        return []
    spellings = re.compile("|".join(map(re.escape, sorted(signs, key=len, reverse=True))))
    return [spellings.sub(lambda match: signs[match[0]], stop) for stop in stops]
