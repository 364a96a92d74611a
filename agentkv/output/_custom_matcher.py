"""Matchers of constraints that users write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .._types.show import safe_str
from ._matcher import ConstraintFailed, Growth, Masks, Matcher, grow
from .constraint import Constraint

T = TypeVar("T")


class CustomConstraint:
    """Rule of a constraint that a user wrote."""

    def __init__(self, constraint: Constraint, eos: frozenset[int], vocab_size: int) -> None:
        self._constraint = constraint
        self._eos = eos
        self._vocab_size = vocab_size

    def begin(self) -> Matcher:
        """Makes the matcher of a new output, on a fork of the user's object."""
        return CustomMatcher(_called(self._constraint, "fork", self._constraint.fork), self._eos, self._vocab_size)

    def end(self, state: Matcher) -> None:
        """Does nothing: no state outlives a generation."""


class CustomMatcher:
    """Matcher of a user's constraint in one generation.

    The object is called on the thread of the step loop only, so each turn collects the masks of all positions that may
    be sampled; `fill_masks` copies them.
    """

    def __init__(self, constraint: Constraint, eos: frozenset[int], vocab_size: int) -> None:
        self._constraint = constraint
        self._eos = eos
        self._vocab_size = vocab_size
        self._at: tuple[int, ...] = ()  # tokens that the object was advanced by since the last turn
        self._masks: dict[tuple[int, ...], NDArray[np.bool_] | None] = {}  # by path; None: nothing may follow

    def advance(self, tokens: list[int]) -> None:
        """Advances by generated tokens."""
        for token in tokens:
            self._ask("advance", self._constraint.advance, token)
        self._masks.clear()
        self._look()

    @property
    def complete(self) -> bool:
        """Whether the output is complete, so that nothing may follow."""
        return self._masks[self._at] is None

    def forced(self, most: int) -> list[int]:
        """Up to `most` next tokens of which each is the only one that its mask allows."""
        path: list[int] = []
        while len(path) < most:
            mask = self._masks[self._at]
            only = [] if mask is None else np.flatnonzero(mask).tolist()
            if len(only) != 1 or not self.step(only[0]):
                break
            path.append(only[0])
        self.back(len(path))
        return path

    def grow(self, tokens: list[int], parents: list[int], most: int) -> Growth:
        """Fits a draft to the constraint, with up to `most` nodes added."""
        return grow(self, tokens, parents, most)

    def fill_masks(self, tokens: list[int], parents: list[int], masks: Masks) -> None:
        """Sets the bits of the allowed tokens: row 0 for the current position, row 1 + i after draft node i."""
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(tokens, parents, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        for row, path in enumerate([(), *paths]):
            if path in self._masks:  # there is none after an end token
                masks[row] = self._bits(self._masks[path])

    def step(self, token: int) -> bool:
        """Advances by a token if it is allowed. Returns False, and stays, for an end token or one that is not."""
        mask = self._masks[self._at]
        if mask is None or not mask[token] or token in self._eos:
            return False
        self._ask("advance", self._constraint.advance, token)
        self._at = (*self._at, token)
        self._look()
        return True

    def back(self, n: int) -> None:
        """Undoes the last n steps."""
        if n:
            self._ask("rollback", self._constraint.rollback, n)
            self._at = self._at[:-n]

    def ends(self, token: int) -> bool:
        """Returns whether this is an end token of the model."""
        return token in self._eos

    def may_end(self) -> bool:
        """Returns whether an end token is allowed here."""
        mask = self._masks[self._at]
        return mask is not None and bool(mask[list(self._eos)].any())

    def _look(self) -> None:
        """Stores the object's mask at the current position, unless it is stored already."""
        if self._at not in self._masks:
            done = self._ask("done", lambda: bool(self._constraint.done))
            self._masks[self._at] = None if done else self._mask()

    def _mask(self) -> NDArray[np.bool_]:
        mask = np.array(self._ask("mask", self._constraint.mask))  # a copy: the object may reuse its own
        if mask.dtype != np.bool_ or mask.shape != (self._vocab_size,):
            raise ConstraintFailed(
                f"{type(self._constraint).__name__}.mask gave {mask.dtype} {list(mask.shape)}, but it must be bool "
                f"[{self._vocab_size}]: whether each token may come"
            )
        return mask

    def _bits(self, mask: NDArray[np.bool_] | None) -> NDArray[np.uint32]:
        bits = np.zeros((self._vocab_size // 32 + 1) * 32, np.bool_)
        if mask is None:
            bits[self._vocab_size] = True
        else:
            bits[: self._vocab_size] = mask
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def _ask(self, what: str, method: Callable[..., T], *given: Any) -> T:
        return _called(self._constraint, what, method, *given)


def _called(constraint: Constraint, what: str, method: Callable[..., T], *given: Any) -> T:
    try:
        return method(*given)
    except BaseException as error:  # also what ends one that does not return
        raise ConstraintFailed(
            f"{type(constraint).__name__}.{what}: {type(error).__name__}: {safe_str(error)}"
        ) from error
