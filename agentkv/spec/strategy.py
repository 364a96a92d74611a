"""The interface of a speculation strategy, for those who write their own."""

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
        confidence: how likely each node is right where its parent is, above 0 and at most 1; None where the strategy
            cannot say. Measured against what became of earlier nodes, so that only the order of the values matters.
    """

    tokens: Ints
    parents: Ints
    confidence: Floats | None = None

    @classmethod
    def chain(cls, tokens: Iterable[int], confidence: Floats | None = None) -> Draft:
        """The draft in which each token follows the one before it. Raises InvalidInput for what is no token id."""
        try:
            nodes = [int(token) for token in tokens]
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidInput(f"tokens must be token ids: {error}") from error
        return cls(nodes, range(-1, len(nodes) - 1), confidence)


class Strategy(Protocol):
    """What proposes drafts: any object with `propose`.

    The model checks a draft in one forward and goes on with what it would have said anyway: a wrong draft costs time,
    never changes the output. This is a whole strategy:

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
      `first` to `first + n`, for good; features: float32 [n, F] where the model gives out features, else None. Comes
      for every branch from the moment that the strategy is first used. After a rollback, and on a fork, positions
      do not go on where the last call ended;
    - `adaptive = False`: always verify all that is proposed, where there is room. By default drafts follow what they
      have cost and brought, and fall back to plain decoding for as long as they do not pay.

    Both methods run on the thread of the step loop, between two forwards: they must be quick, and must not call into
    the Context. What they raise ends the generations that asked, as StepFailed. A Context binds an object when it first
    sees it and keeps it: make one and pass it again, rather than a new one per call; use it in one Context at a time.
    """

    def propose(self, branch: int, tokens: NDArray[np.int32], limit: int) -> Draft | None:
        """What may follow a branch, or None for no guess.

        Args:
            branch: `Branch.id`.
            tokens: the whole branch, int32 [n]; a copy.
            limit: nodes that there is room for, at least 1; further ones are dropped.
        """
        ...
