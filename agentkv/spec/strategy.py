"""Interface of custom speculation strategies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .._types.errors import InvalidInput

Ints = Sequence[int] | NDArray[np.integer[Any]]
Floats = Sequence[float] | NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A tree of tokens that may follow a branch.

    Attributes:
        tokens: the token of each node. Two children of one node must differ.
        parents: the index of each node's parent, an earlier node, or -1 for those that follow the branch's last token.
        confidence: probability of each node given that its parent is right, above 0 and at most 1; None if the strategy
            has none. Calibrated on the outcome of earlier nodes, so that only the order of the values matters.
    """

    tokens: Ints
    parents: Ints
    confidence: Floats | None = None

    @classmethod
    def chain(cls, tokens: Iterable[int], confidence: Floats | None = None) -> Draft:
        """The draft in which each token follows the one before it. Raises InvalidInput for a value that is no token
        id."""
        try:
            nodes = [int(token) for token in tokens]
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInput(f"tokens must be token ids: {error}") from error
        return cls(nodes, range(-1, len(nodes) - 1), confidence)


class Strategy(Protocol):
    """Proposes drafts: any object with `propose`.

    The model verifies a draft in one forward and generates the same tokens as without it: a wrong draft costs time, and
    never changes the output. This is a complete strategy:

        class LastTime:
            '''Guesses that what followed the last two tokens before follows them again.'''

            def propose(self, branch, tokens, limit):
                if len(tokens) < 3:
                    return None
                same = (tokens[:-2] == tokens[-2]) & (tokens[1:-1] == tokens[-1])
                places = np.flatnonzero(same)
                if not places.size:
                    return None
                start = places[-1] + 2
                return kv.spec.Draft.chain(tokens[start : start + min(limit, 8)])

        gen = await branch.generate(speculative=LastTime())

    A strategy may also have

    - `observe(branch, first, tokens, features)`: the model has run `tokens` (int32 [n]) of a branch, at positions
      `first` to `first + n`, for good; features: float32 [n, F] where the model outputs features, else None. Called
      for every branch from the first use of the strategy on. After a rollback, and on a fork, positions do not
      continue where the last call ended;
    - `adaptive = False`: always verify as many proposed nodes as fit. By default drafts adjust to their measured cost
      and benefit, and fall back to plain decoding for as long as they do not pay off.

    Both methods run on the thread of the step loop, between two forwards: they must be quick, and must not call into
    the Context. An exception from them ends the generations that use the strategy, as StepFailed. A Context binds an
    object on its first use and keeps it: make one and pass it again, rather than a new one per call; use it in one
    Context at a time.
    """

    def propose(self, branch: int, tokens: NDArray[np.int32], limit: int) -> Draft | None:
        """Proposes a continuation of a branch, or None for no draft.

        Args:
            branch: `Branch.id`.
            tokens: the whole branch, int32 [n]; a copy.
            limit: number of nodes that fit, at least 1; further ones are dropped.
        """
        ...
