"""Where in a message the reasoning is, as its tokens arrive: what a budget of reasoning is counted by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

__all__ = ["Markers", "Place", "Stage"]


class Stage(Enum):
    """How far a message is."""

    BEFORE = "before"
    """A thought may open: nothing was written yet."""
    INSIDE = "inside"
    """In a thought."""
    BEHIND = "behind"
    """A thought was closed, and no word of the answer is there yet."""
    ANSWER = "answer"
    """No thought opens any more."""


class Place(NamedTuple):
    """Where a message is after some of its bytes."""

    stage: Stage = Stage.BEFORE
    tail: bytes = b""
    """What may be the beginning of a marker."""


@dataclass(frozen=True)
class Markers:
    """What is around the reasoning of a message, which comes before its answer."""

    opened: str
    closed: str
    before: str = ""
    """What may stand before a further thought, but for white space."""
    optional: bool = True
    """Can an empty thought be written where there is to be none? Otherwise it is left out."""

    def read(self, place: Place, piece: bytes) -> Place:
        """Where the message is after another piece of it."""
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
        """Where a message is that a prompt has begun with this text."""
        return self.read(Place(), text.encode())

    def size(self, place: Place, pieces: Iterable[bytes]) -> int:
        """How many pieces that follow are a thought, markers included: all where it does not end, 0 without one."""
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
        """What is left of the closing marker in a thought that ends with its beginning; all of it elsewhere."""
        try:
            return self._closed[len(place.tail) :].decode()
        except UnicodeDecodeError:  # the beginning is a part of a character
            return self.closed

    def reopens(self, place: Place, piece: bytes) -> bool:
        """Would this piece open a thought, or close one that there is not?"""
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
    """So many bytes at the end of the text are the beginning of the marker."""
    sizes = range(min(len(text), len(marker) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(marker[:size])), 0)
