"""Interface of a constraint's state in one generation, and a walk over the nodes of a draft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Masks = NDArray[np.uint32]  # [1 + nodes, words]


class ConstraintFailed(Exception):
    """A constraint cannot be followed; the message gives the reason."""


class Growth(NamedTuple):
    """What a constraint makes of a draft."""

    allowed: list[int]
    """Nodes that may follow, ascending, with all their ancestors."""
    tokens: list[int]
    """More nodes: each the only token that may follow its parent."""
    parents: list[int]
    """Of `tokens`: a node of the draft, or an earlier one of these, counted on from the draft's size."""


class Matcher(Protocol):
    """State of a constraint in one generation. An exception fails that generation only."""

    def advance(self, tokens: list[int]) -> None:
        """Advances by generated tokens."""

    @property
    def complete(self) -> bool:
        """Whether the output is complete, so that nothing may follow."""

    def forced(self, most: int) -> list[int]:
        """Up to `most` next tokens of which each is the only one allowed."""

    def grow(self, tokens: list[int], parents: list[int], most: int) -> Growth:
        """Fits a draft to the constraint, with up to `most` nodes added."""

    def fill_masks(self, tokens: list[int], parents: list[int], masks: Masks) -> None:
        """Sets the bits of the allowed tokens, uint32 [1 + nodes, words]: row 0 here, row 1 + i after draft node i.

        Runs on another thread.
        """


class Rule(Protocol):
    """A compiled constraint."""

    def begin(self) -> Matcher:
        """Makes the matcher of a new output."""

    def end(self, state: Matcher) -> None:
        """Ends the matcher of a generation that is over."""


class Steppable(Protocol):
    """A state that can step over tokens and back."""

    def step(self, token: int) -> bool:
        """Advances by a token. Returns False, and stays, if it is not allowed."""

    def back(self, n: int) -> object:
        """Undoes the last n steps."""

    def forced(self, most: int) -> list[int]:
        """Up to `most` next tokens of which each is the only one allowed."""

    def ends(self, token: int) -> bool:
        """Returns whether this is an end token, which nothing follows and which is no step."""

    def may_end(self) -> bool:
        """Returns whether an end token is allowed here."""


class DraftTreeWalk:
    """Visits the nodes of a draft tree with one state, which steps back to where paths part and on along the next."""

    def __init__(self, state: Steppable, tokens: Sequence[int], parents: Sequence[int]) -> None:
        self.ends: list[int] = []  # allowed nodes that are end tokens; `visit` leaves them out
        self._state = state
        self._tokens = tokens
        self._parents = parents
        self._path: list[int] = []  # nodes that the state has stepped over

    def visit(self) -> Iterator[int]:
        """Yields each allowed node while the state is just past it. Returns the state to where it began."""
        state = self._state
        reached = [False] * len(self._tokens)
        try:
            for node, (token, parent) in enumerate(zip(self._tokens, self._parents, strict=True)):
                if parent >= 0 and not reached[parent]:
                    continue
                self._move_to(parent)
                if state.ends(token):
                    if state.may_end():
                        self.ends.append(node)
                elif state.step(token):
                    self._path.append(node)
                    reached[node] = True
                    yield node
        finally:
            self._retreat(0)

    def _move_to(self, node: int) -> None:
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self._parents[node]
        path.reverse()
        same = 0
        while same < min(len(path), len(self._path)) and path[same] == self._path[same]:
            same += 1
        self._retreat(same)
        for at in path[same:]:
            if not self._state.step(self._tokens[at]):
                raise ConstraintFailed(f"token {self._tokens[at]} could come once and cannot a second time")
            self._path.append(at)

    def _retreat(self, length: int) -> None:
        if len(self._path) > length:
            self._state.back(len(self._path) - length)
            del self._path[length:]


def grow(state: Steppable, tokens: list[int], parents: list[int], most: int) -> Growth:
    """Fits a draft to the constraint that a state is of: the allowed nodes, and what must follow each of them.

    An end token is allowed where the output may end, with nothing after it.
    """
    walk = DraftTreeWalk(state, tokens, parents)
    drafted = set(zip(parents, tokens, strict=True))
    grown = Growth([], [], [])
    for node in walk.visit():
        grown.allowed.append(node)
        forced, parent = state.forced(most - len(grown.tokens)), node
        if forced and (node, forced[0]) in drafted:
            continue  # that node is visited, too
        for token in forced:
            grown.tokens.append(token)
            grown.parents.append(parent)
            parent = len(tokens) + len(grown.tokens) - 1
    grown.allowed.extend(walk.ends)
    grown.allowed.sort()
    return grown
