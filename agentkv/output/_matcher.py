"""The interface of what a constraint has come to in one generation, and a walk over the nodes of a draft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Masks = NDArray[np.uint32]  # [1 + nodes, words]


class ConstraintFailed(Exception):
    """A constraint cannot be followed; says why."""


class State(Protocol):
    """Of one generation. What it raises fails that generation."""

    def say(self, tokens: list[int]) -> None:
        """Goes on by tokens that were said."""

    @property
    def complete(self) -> bool:
        """May nothing follow?"""

    def forced(self, most: int) -> list[int]:
        """One after the other the only token that may follow, at most so many."""

    def allowed(self, tokens: list[int], parents: list[int]) -> list[int]:
        """The nodes of a draft that may follow, with all their ancestors."""

    def fill(self, tokens: list[int], parents: list[int], masks: Masks) -> None:
        """Sets the bits of what may follow, first here, then after each node of a draft. On another thread."""


class Rule(Protocol):
    """A compiled constraint."""

    def begin(self) -> State:
        """The state of an output that begins."""

    def end(self, state: State) -> None:
        """A generation is over."""


class Moved(Protocol):
    """A state that can be taken over tokens and back."""

    def step(self, token: int) -> bool:
        """Goes on by a token; False, and stays, where that cannot come."""

    def back(self, n: int) -> object:
        """Takes back the last n steps."""

    def ends(self, token: int) -> bool:
        """Is it an end, which nothing follows and which is no step?"""

    def may_end(self) -> bool:
        """May such an end come?"""


class Walk:
    """Visits the nodes of a tree by moving one state to and fro: along each node's path, back to where paths part."""

    def __init__(self, state: Moved, tokens: Sequence[int], parents: Sequence[int]) -> None:
        self.ends: list[int] = []  # nodes that are ends and may come; `visit` leaves them out
        self._state = state
        self._tokens = tokens
        self._parents = parents
        self._path: list[int] = []  # where the state is

    def visit(self) -> Iterator[int]:
        """Each node that may come, when the state is behind it. The state ends where it began."""
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
