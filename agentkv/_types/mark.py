"""Points in a branch's history to roll back to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Mark:
    """A point in a branch's history to roll back to. Made by `Branch.mark`.

    A mark is valid as long as the branch still has the history before it: rolling back behind it, or adopting a history
    that differs before it, makes it invalid. Tokens that are generated again are another history, even if equal.

    Attributes:
        branch_id: id of its branch.
        length: number of tokens before it.
        scope: tells branches of different Contexts apart.
        epoch: epoch of the token before it, as `StepEngine.tip` gives it.
        files: the version of the branch's files then; None for a branch without a workspace.
    """

    branch_id: int
    length: int
    scope: object = field(repr=False)
    epoch: int = field(repr=False)
    files: Any = field(default=None, repr=False, compare=False)
