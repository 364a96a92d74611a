"""The interface of a constraint, for those who write their own."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@runtime_checkable
class Constraint(Protocol):
    """What a generation may say: any object with these methods. `branch.generate(output=mine)` keeps to it.

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

    The object that is passed says how an output begins: it is forked for each generation and not changed. The state of
    a fork must follow from the tokens that it was advanced by, since branches that fork and roll back are followed by
    advancing a new fork by what they hold. Where `mask` allows a single token, that is what comes, in the forward of
    the token before it. The model's end token ends an output where `mask` allows it; it is not given to `advance`.

    All of it runs on the thread of the step loop, between two forwards: it must be quick, and must not call into the
    Context. What it raises ends its own generation, as StepFailed.
    """

    def mask(self) -> NDArray[np.bool_]:
        """Which tokens may come next: bool [vocab_size], the model's (`ModelInfo.vocab_size`)."""
        ...

    def advance(self, token: int) -> None:
        """The token came."""
        ...

    def rollback(self, n: int) -> None:
        """Forgets the last `n` tokens."""
        ...

    def fork(self) -> Constraint:
        """Another object in the same state."""
        ...

    @property
    def done(self) -> bool:
        """Whether nothing may come: the output is complete, and the generation ends."""
        ...
