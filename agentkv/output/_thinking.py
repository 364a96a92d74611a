"""Reasoning within a budget: a constraint that closes a thought, and leaves all else unconstrained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from agentkv_runtime.formats.thought import Place, Stage
from agentkv_runtime.text.added_tokens import ControlledText
from numpy.typing import NDArray

from ._matcher import Growth, Masks, Matcher, Rule

if TYPE_CHECKING:
    from agentkv_runtime.text.tokenizer import Tokenizer

    from ._thought import Parts

HAND_OVER = "\n\nI have thought enough; I answer now.\n"
"""Last words of a thought that its budget cuts off."""


class At(NamedTuple):
    """Position of a generation within its message."""

    place: Place
    spent: int = 0
    """Number of reasoning tokens so far."""
    forced: tuple[int, ...] = ()
    """Tokens that must come next."""


class ThinkingRule:
    """Rule of a thought with a budget, with an inner rule on the message or on the answer."""

    def __init__(self, parts: Parts, tokenizer: Tokenizer, pieces: Sequence[bytes], inner: Rule | None) -> None:
        self._markers = parts.markers
        self._budget = parts.budget
        self._tokenizer = tokenizer
        self._pieces = pieces
        self._ends = [i for i in tokenizer.eos_ids if i < len(pieces)]
        self._closers: dict[tuple[bytes, bool], tuple[int, ...]] = {}
        self._reopening: dict[Place, list[int]] = {}
        self.inner = inner
        self._begun = parts.begun
        self.in_message = parts.in_message
        self.first = self._first(parts.begun)

    def begin(self) -> Matcher:
        """Makes the matcher of a new message."""
        return ThinkingState(self)

    def end(self, state: Matcher) -> None:
        """Does nothing: no state outlives a generation."""

    def step(self, at: At, token: int) -> At:
        """Position after a token."""
        place = self._markers.read(at.place, self._pieces[token])
        if self.answers(place):
            place = Place(Stage.ANSWER)
        if at.forced:
            return At(place, at.spent, at.forced[1:])
        inside = at.place.stage is place.stage is Stage.INSIDE
        return self._in_budget(At(place, at.spent + inside))

    def spoken(self, tokens: Sequence[int]) -> list[int]:
        """The message under this rule that a model without a budget would write as `tokens`.

        Its thought is cut off and closed, its answer whole.
        """
        thought = self._markers.size(self._begun, map(self._pieces.__getitem__, tokens))
        at, made = self.first, list[int]()
        for token in tokens[: thought if self._budget != 0 else 0]:
            if at.forced and token != at.forced[0]:
                break
            made.append(token)
            at = self.step(at, token)
        return [*made, *at.forced, *tokens[thought:]]

    def permits(self, at: At, token: int) -> bool:
        """Returns whether the thought allows the token."""
        return token == at.forced[0] if at.forced else token not in self.forbidden(at)

    def forbidden(self, at: At) -> Sequence[int]:
        """Tokens that are not allowed at a position.

        These are an end before the answer under a grammar, and, once the budget is spent, tokens that would reopen the
        thought.
        """
        if not self.in_message and at.place.stage is not Stage.ANSWER:
            return self._ends
        over = self._budget is not None and at.spent >= self._budget
        if not over or at.place.stage not in (Stage.BEFORE, Stage.BEHIND):
            return ()
        if at.place not in self._reopening:
            reopens = (i for i, piece in enumerate(self._pieces) if self._markers.reopens(at.place, piece))
            self._reopening[at.place] = list(reopens)
        return self._reopening[at.place]

    def answers(self, place: Place) -> bool:
        """Returns whether the inner rule alone constrains this place: an answer whose rule excludes the thought."""
        return not self.in_message and place.stage in (Stage.BEHIND, Stage.ANSWER)

    @cached_property
    def anything(self) -> NDArray[np.uint32]:
        """Mask that allows all tokens, uint32 [words]."""
        size = len(self._pieces)
        bits = np.zeros((size // 32 + 1) * 32, np.bool_)
        bits[:size] = True
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def _first(self, begun: Place) -> At:
        if self.answers(begun):
            return At(Place(Stage.ANSWER))
        if begun.stage is not Stage.BEFORE:
            return self._in_budget(At(begun))
        opened = self._markers.opened if self._markers.optional and not begun.tail else ""
        if opened and self._budget == 0:
            return At(begun, 0, self._encode(f"{opened}\n\n{self._markers.closed}"))
        return At(begun, 0, self._encode(f"{opened}\n") if opened and not self.in_message else ())

    def _in_budget(self, at: At) -> At:
        if at.place.stage is not Stage.INSIDE or self._budget is None or at.spent < self._budget:
            return at
        return At(at.place, at.spent, self._closing(at))

    def _closing(self, at: At) -> tuple[int, ...]:
        key = at.place.tail, at.spent > 0
        if key not in self._closers:
            rest = self._markers.rest_of_closed(at.place)
            whole = rest == self._markers.closed
            self._closers[key] = self._encode((HAND_OVER if at.spent else "\n") + rest if whole else rest)
        return self._closers[key]

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode_next(ControlledText(text)))


class ThinkingState:
    """Matcher of one message with a thought."""

    def __init__(self, rule: ThinkingRule) -> None:
        self._rule = rule
        self._at = rule.first
        self._inner = rule.inner.begin() if rule.inner is not None and rule.in_message else None
        if rule.answers(self._at.place):
            self._begin_answer([])

    def advance(self, tokens: list[int]) -> None:
        """Advances by generated tokens."""
        if self._inner is not None:
            self._inner.advance(tokens)
        for index, token in enumerate(tokens):
            self._at = self._rule.step(self._at, token)
            if self._inner is None and self._rule.answers(self._at.place):
                self._begin_answer(tokens[index + 1 :])

    def _begin_answer(self, said: list[int]) -> None:
        assert self._rule.inner is not None
        self._inner = self._rule.inner.begin()
        if said:
            self._inner.advance(said)

    @property
    def complete(self) -> bool:
        """Whether the output is complete, so that nothing may follow."""
        return not self._at.forced and self._inner is not None and self._inner.complete

    def forced(self, most: int) -> list[int]:
        """Up to `most` next tokens of which each is the only one allowed."""
        if self._at.forced:
            return list(self._at.forced[:most])
        return [] if self._inner is None else self._inner.forced(most)

    def grow(self, tokens: list[int], parents: list[int], most: int) -> Growth:
        """Fits a draft to the rule. Nodes after a thought that closes within the draft wait for the next turn."""
        nodes = [node for node, at in enumerate(self._places(tokens, parents)) if at is not None]
        if self._inner is None:
            return Growth(nodes, [], [])
        grown = self._inner.grow(tokens, parents, most)
        return grown._replace(allowed=sorted(set(nodes).intersection(grown.allowed)))

    def fill_masks(self, tokens: list[int], parents: list[int], masks: Masks) -> None:
        """Sets the bits of the allowed tokens: row 0 for the current position, row 1 + i after draft node i."""
        if self._inner is None:
            masks[:] = self._rule.anything
        else:
            self._inner.fill_masks(tokens, parents, masks)
        for row, at in enumerate([self._at, *self._places(tokens, parents)]):
            if at is not None:
                self._fill_row(at, masks[row : row + 1])

    def _fill_row(self, at: At, mask: Masks) -> None:
        if at.forced:
            mask[:] = 0
            mask[0, at.forced[0] // 32] = 1 << at.forced[0] % 32
            return
        if self._inner is None and self._rule.answers(at.place) and self._rule.inner is not None:
            mask[:] = 0
            self._rule.inner.begin().fill_masks([], [], mask)
        for token in self._rule.forbidden(at):
            mask[0, token // 32] &= ~(1 << token % 32) & 0xFFFFFFFF

    def _places(self, tokens: list[int], parents: list[int]) -> Iterator[At | None]:
        """Position after each node of a draft; None for a node that is not allowed."""
        places: list[At | None] = []
        for token, parent in zip(tokens, parents, strict=True):
            before = self._at if parent < 0 else places[parent]
            waits = before is None or (self._inner is None and self._rule.answers(before.place))
            if waits or before is None or not self._rule.permits(before, token):
                places.append(None)
            else:
                places.append(self._rule.step(before, token))
        yield from places
