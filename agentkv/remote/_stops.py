"""Finds stop strings in text that comes token by token, as the native engine does."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Of one generation. What may be the beginning of a stop string is held back until it is known."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop.encode() for stop in stops]
        self._longest = max(map(len, self._stops), default=0)
        self._text = bytearray()
        self._shown = 0
        self._held = 0

    @property
    def text(self) -> bytes:
        """Without the stop string."""
        return bytes(self._text)

    def push(self, piece: bytes) -> bool:
        """True where a stop string is complete: the text ends in front of it."""
        before = len(self._text)
        self._text += piece
        if not self._stops:
            return False
        ends = [end for stop in self._stops if (end := self._end_of(stop, before)) >= 0]
        if ends:
            end = min(ends)  # the one that is complete first, and of several that end there the longest
            length = max(len(stop) for stop in self._stops if self._text[:end].endswith(stop))
            del self._text[end - length :]
            self._held = 0
            return True
        tail = bytes(self._text[-self._longest :])
        self._held = max((k for stop in self._stops for k in range(1, len(stop)) if tail.endswith(stop[:k])), default=0)
        return False

    def _end_of(self, stop: bytes, before: int) -> int:
        found = self._text.find(stop, max(0, before - len(stop) + 1))
        return found + len(stop) if found >= 0 else -1

    def finish(self) -> None:
        """Nothing more comes: what was held back is text."""
        self._held = 0

    def take_shown(self) -> bytes:
        """What is text for sure, and was not taken before."""
        end = max(len(self._text) - self._held, self._shown)
        shown, self._shown = bytes(self._text[self._shown : end]), end
        return shown
