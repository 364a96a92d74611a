"""Points in a branch's history to roll back to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mark:
    """A point in a branch's history to roll back to. Made by `Branch.mark`.

    It holds as long as the branch still has the history before it: rolling back behind it, or adopting a history that
    differs before it, makes it invalid. Tokens that are written anew are another history, even if they are the same.

    Attributes:
        branch_id: the branch that it belongs to.
        length: tokens before it.
    """

    branch_id: int
    length: int
    _owner: object = field(repr=False)  # tells branches of different Contexts apart
    _epoch: int = field(repr=False)  # of the token before it: see `StepEngine.tip`
