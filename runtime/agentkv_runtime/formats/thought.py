"""Locating the reasoning in a message while its tokens arrive, for budgets of reasoning."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

__all__ = ["Markers", "Place", "Stage"]


class Stage(Enum):
    """Stage of a message with respect to its reasoning."""

    BEFORE = "before"
    """Nothing is written yet; a thought may open."""
    INSIDE = "inside"
    """A thought is open."""
    BEHIND = "behind"
    """A thought was closed, and the answer has not begun."""
    ANSWER = "answer"
    """The answer has begun; no further thought can open."""


class Place(NamedTuple):
    """Position of a message with respect to its reasoning, after some of its bytes."""

    stage: Stage = Stage.BEFORE
    tail: bytes = b""
    """Last bytes, if they may be the beginning of a marker."""


@dataclass(frozen=True)
class Markers:
    """Markers around the reasoning of a message, which precedes the answer."""

    opened: str
    closed: str
    before: str = ""
    """Text that may precede a further thought, beside white space."""
    optional: bool = True
    """Whether a message without reasoning may begin with an empty thought; otherwise it has none."""

    def read(self, place: Place, piece: bytes) -> Place:
        """The place after a further piece of the message."""
        stage, text = place.stage, place.tail + piece
        while True:
            if stage is Stage.ANSWER:
                return Place(stage)
            if stage is Stage.INSIDE:
                _, closed, behind = text.partition(self._closed)
                if not closed:
                    return Place(stage, text[len(text) - _shared(text, self._closed) :])
                stage, text = Stage.BEHIND, behind
                continue
            text = text.lstrip()
            opening = next((each for each in self._openings if text.startswith(each)), None)
            if opening is not None:
                stage, text = Stage.INSIDE, text[len(opening) :]
            elif any(each.startswith(text) for each in self._openings):
                return Place(stage, text)
            else:
                stage = Stage.ANSWER

    def begun(self, text: str) -> Place:
        """The place of a message whose beginning, written by the prompt, is this text."""
        return self.read(Place(), text.encode())

    def size(self, place: Place, pieces: Iterable[bytes]) -> int:
        """Number of the following pieces that are a thought, markers included: all if it is open, 0 without one."""
        count = 0
        for count, piece in enumerate(pieces, 1):
            for byte in piece:
                before, place = place, self.read(place, bytes((byte,)))
                if before.stage is Stage.INSIDE and place.stage is Stage.BEHIND:
                    return count
                if place.stage is Stage.ANSWER:
                    return 0
        return count if place.stage is Stage.INSIDE else 0

    def rest_of_closed(self, place: Place) -> str:
        """The closing marker without its beginning `place.tail`; the whole marker if the rest is not UTF-8."""
        try:
            return self._closed[len(place.tail) :].decode()
        except UnicodeDecodeError:  # the beginning is a part of a character
            return self.closed

    def reopens(self, place: Place, piece: bytes) -> bool:
        """Whether this piece would open a thought, or close one that is not open."""
        text = (place.tail + piece).lstrip()
        return text.startswith((*self._openings, self._closed))

    @cached_property
    def _closed(self) -> bytes:
        return self.closed.encode()

    @cached_property
    def _openings(self) -> tuple[bytes, ...]:
        opened = self.opened.encode()
        return (opened, self.before.encode() + opened) if self.before else (opened,)


def _shared(text: bytes, marker: bytes) -> int:
    """Number of bytes at the end of the text that are the beginning of the marker."""
    sizes = range(min(len(text), len(marker) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(marker[:size])), 0)
