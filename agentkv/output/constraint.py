"""Interface of a constraint, for those who write their own."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@runtime_checkable
class Constraint(Protocol):
    """A constraint on an output: any object with these methods, passed as `branch.generate(output=mine)`.

        class Alternate:
            '''Even token ids and odd ones in turns.'''

            def __init__(self, vocab_size, said=()):
                self.odd = np.arange(vocab_size) % 2 == 1
                self.said = list(said)

            def mask(self):
                return self.odd if len(self.said) % 2 else ~self.odd

            def advance(self, token):
                self.said.append(token)

            def rollback(self, n):
                del self.said[len(self.said) - n :]

            def fork(self):
                return Alternate(len(self.odd), self.said)

            done = False

    The object that is passed is the initial state: it is forked for each generation and not changed. The state of a
    fork must depend only on the tokens that it was advanced by, since after a fork or a rollback of the branch a new
    fork is advanced by the tokens that are left. Where `mask` allows a single token, that token is emitted in the
    forward of the one before it. The model's end token ends an output where `mask` allows it, without an `advance`.

    All methods run on the thread of the step loop, between two forwards: they must be quick, and must not call into the
    Context. An exception ends its own generation, as StepFailed.
    """

    def mask(self) -> NDArray[np.bool_]:
        """Tokens that may come next: bool [vocab_size], with the model's `ModelInfo.vocab_size`."""
        ...

    def advance(self, token: int) -> None:
        """Advances the state by a generated token."""
        ...

    def rollback(self, n: int) -> None:
        """Undoes the last `n` advances."""
        ...

    def fork(self) -> Constraint:
        """Returns another object in the same state."""
        ...

    @property
    def done(self) -> bool:
        """Whether the output is complete, which ends the generation."""
        ...
