"""Where brackets and strings of JSON or Python text begin and end, as the text arrives."""

from __future__ import annotations

__all__ = ["Nesting"]

_OPENING, _CLOSING = "[{(", "]})"


class Nesting:
    """Follows a text."""

    def __init__(self, quotes: str = '"') -> None:
        self._quotes = quotes
        self._quote = ""
        self._escaped = False
        self.depth = 0
        """Brackets that are open."""

    @property
    def in_string(self) -> bool:
        """Is the text inside a string?"""
        return bool(self._quote)

    def read(self, text: str) -> None:
        """Goes over more of it."""
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
