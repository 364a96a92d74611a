"""A rendering as tokens, piece by piece: what the template wrote, and between it what the model generated."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from agentkv_runtime.text.added_tokens import AddedTokens, ControlledText
    from agentkv_runtime.text.tokenizer import Tokenizer

    from ._conversation import Conversation, Entry


_MOST_IN_HEADER = 4  # control tokens that open a turn


class _Piece(NamedTuple):
    start: int  # in the text
    end: int
    token: int  # of the branch
    tokens: Sequence[int]
    written: ControlledText | None  # None for what was generated


class _Anchor(NamedTuple):
    """A control token of a piece: where it is in the text, and how many tokens there are up to its end."""

    start: int
    end: int
    tokens: int


class Pieces:
    """Tokens of a rendering. Those that the branch has of the same text are taken from there."""

    def __init__(self, tokenizer: Tokenizer, text: ControlledText, log: array[int], conversation: Conversation) -> None:
        self._tokenizer = tokenizer
        self._added = tokenizer.added
        self._text = text
        self._log = log
        self._conversation = conversation
        self._pieces: list[_Piece] = []
        self._anchors: dict[int, list[_Anchor]] = {}  # by where their piece begins
        self._known: int | None = conversation.start  # where in the log what comes next begins, if it is there
        self.done = 0  # characters
        self.tokens = array("i")
        self.tail: ControlledText

    def generated(self, entry: Entry, start: int, end: int) -> Entry:
        """Characters `start` to `end` are what was generated. Returns the entry with its place now."""
        given = self._text.between(self.done, start)
        assert entry.given is not None
        if self._known is not None and self._added.same(given, entry.given):
            self._add(given, self._log[self._known : entry.start])
        else:
            self._add(given, self._encoded(given, len(self.tokens)))
        now = self._conversation.start + len(self.tokens)
        tokens = self._log[entry.start : entry.end]
        self._pieces.append(_Piece(start, end, now, tokens, None))
        self.tokens.extend(tokens)
        self.done, self._known = end, entry.end
        return replace(entry, start=now, end=now + len(tokens), given=given)

    def rewritten(self) -> None:
        """The next generated message is not there as it was: what the branch has behind it does not help any more."""
        self._known = None

    def rest(self) -> None:
        """What comes after the last generated message is the template's."""
        self.tail = self._text.between(self.done, len(self._text.text))
        old = self._conversation.tail
        if old is None or self._known is None or self._known > self._conversation.end:
            self._add(self.tail, self._encoded(self.tail, len(self.tokens)))
            return
        known = self._log[self._known : self._conversation.end]
        characters, count = self._shared(old, self.tail, known)
        more = self.tail.between(characters, len(self.tail.text))
        self._add(self.tail, [*known[:count], *self._encoded(more, len(self.tokens))])

    def token_at(self, place: int) -> int:
        """Which token of the branch begins at a character of the text."""
        piece = next((piece for piece in self._pieces if piece.start <= place < piece.end), None)
        if piece is None:
            return self._conversation.start + len(self.tokens)
        if piece.written is None or place == piece.start:
            return piece.token
        anchors = self._anchors_of(piece)
        behind = bisect_left(anchors, place - piece.start, key=lambda anchor: anchor.start)
        begin, count = (anchors[behind - 1].end, anchors[behind - 1].tokens) if behind else (0, 0)
        between = piece.written.between(begin, max(place - piece.start, begin))
        before = piece.token + count
        return before + len(self._encoded(between, before - self._conversation.start))

    def reply_at(self, place: int) -> tuple[int, int]:
        """Which token begins at a character of the rest, or goes on over it; and the character that it begins with."""
        piece = self._pieces[-1]
        assert piece.written is not None
        inside = place - piece.start
        anchors = [anchor for anchor in self._anchors_of(piece) if anchor.end <= inside]
        begin, count = (anchors[-1].end, anchors[-1].tokens) if anchors else (0, 0)
        between = piece.written.between(begin, inside)
        encoded = self._encoded(between, piece.token + count - self._conversation.start)
        same = next(
            (i for i, pair in enumerate(zip(encoded, piece.tokens[count:], strict=False)) if pair[0] != pair[1]),
            len(encoded),
        )
        if same == len(encoded):
            return piece.token + count + same, place
        spelled = self._tokenizer.decode(encoded[:same], skip_special=False)
        if not between.text.startswith(spelled):
            same, spelled = 0, ""
        return piece.token + count + same, piece.start + begin + len(spelled)

    def _anchors_of(self, piece: _Piece) -> list[_Anchor]:
        if piece.start not in self._anchors:
            assert piece.written is not None
            controls = self._added.controls_in(piece.written)
            ids = self._added.control_ids
            counts = [i + 1 for i, token in enumerate(piece.tokens) if token in ids]
            pairs = zip(controls, counts, strict=True) if len(controls) == len(counts) else ()
            self._anchors[piece.start] = [_Anchor(control.start, control.end, count) for control, count in pairs]
        return self._anchors[piece.start]

    def _add(self, text: ControlledText, tokens: Sequence[int]) -> None:
        token = self._conversation.start + len(self.tokens)
        self._pieces.append(_Piece(self.done, self.done + len(text.text), token, tokens, text))
        self.done += len(text.text)
        self.tokens.extend(tokens)

    def _encoded(self, text: ControlledText, place: int) -> list[int]:
        """Tokens of a text that is to begin at this place among them."""
        start = self._conversation.start
        if not text.text:
            return []
        if place == start == 0:
            return self._tokenizer.encode_rendered(text)
        before = self.tokens[place - 1] if place else self._log[start - 1]
        return self._tokenizer.encode_next(text, after_control=before in self._added.control_ids)

    def _shared(self, old: ControlledText, new: ControlledText, tokens: Sequence[int]) -> tuple[int, int]:
        """Up to where both texts are the same and the same tokens: the last control token that they share."""
        length = _common_characters(old.text, new.text)
        pairs = zip(self._added.controls_in(old), self._added.controls_in(new), strict=False)
        same = 0
        for one, other in pairs:
            if one != other or one.end >= length:
                break
            same += 1
            place = one.start
        count = self._after_control(tokens, same)
        return (place, count - 1) if same and count is not None else (0, 0)

    def _after_control(self, tokens: Sequence[int], count: int) -> int | None:
        """How many tokens there are up to the control token of this number, itself included."""
        ids = self._added.control_ids
        places = (i for i, token in enumerate(tokens) if token in ids)
        found = next(islice(places, count - 1, None), None) if count else None
        return None if found is None else found + 1


def find_generated(added: AddedTokens, text: ControlledText, entry: Entry, start: int) -> tuple[int, int] | None:
    """Where a generated message stands in a rendering that writes before it, from `start` on, what it wrote then."""
    given = entry.given
    assert given is not None
    place = start + len(given.text)
    if text.text.startswith(given.text + entry.spelled, start) and added.same(text.between(start, place), given):
        return place, place + len(entry.spelled)
    return None


def find_elsewhere(added: AddedTokens, text: ControlledText, entry: Entry, start: int) -> tuple[int, int] | None:
    """Where it stands in one that writes something else: how its turn is opened and what follows it tell."""
    controls = [control.start for control in added.controls_in(text)]
    place = text.text.find(entry.spelled, start) if entry.spelled and entry.opening else -1
    while place >= 0:
        end = place + len(entry.spelled)
        before = controls[: bisect_left(controls, place)]
        headers = [begin for begin in before[-_MOST_IN_HEADER:] if begin >= start]
        opened = any(_opens(entry.opening, text.text, begin, place) for begin in headers)
        behind = len(text.text) - len(text.text[end:].lstrip())
        if opened and (behind == len(text.text) or behind in controls):
            return place, end
        place = text.text.find(entry.spelled, place + 1)
    return None


def _opens(opening: str, text: str, begin: int, place: int) -> bool:
    """Is what lies between two places of a text the opening of a turn, or the first part of it? White space that goes
    on with the opening is the template's, also where a reply begins with the same."""
    more = opening[place - begin : place - begin + 1]
    return opening.startswith(text[begin:place]) and not (more.isspace() and text.startswith(more, place))


def _common_characters(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
