"""Incremental tracking of brackets and strings in JSON or Python text."""

from __future__ import annotations

__all__ = ["Nesting"]

_OPENING, _CLOSING = "[{(", "]})"


class Nesting:
    """Depth and string state after the text read so far."""

    def __init__(self, quotes: str = '"') -> None:
        self._quotes = quotes
        self._quote = ""
        self._escaped = False
        self.depth = 0
        """Number of open brackets."""

    @property
    def in_string(self) -> bool:
        """Whether the text ends inside of a string."""
        return bool(self._quote)

    def read(self, text: str) -> None:
        """Reads more text."""
        for character in text:
            if self._quote:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == self._quote:
                    self._quote = ""
            elif character in self._quotes:
                self._quote = character
            elif character in _OPENING:
                self.depth += 1
            elif character in _CLOSING:
                self.depth -= 1
