"""Points in a branch's history to roll back to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ._errors import InvalidRollback
from ._history import History
from ._inputs import checked_count


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
    _epoch: int = field(repr=False)  # of the token before it: see `StepEngine.end`


def make_mark(branch_id: int, history: History) -> Mark:
    """A mark at the end of a history."""
    length, epoch = history.end
    return Mark(branch_id, length, history.owner, epoch)


def marks_at(lengths: Mapping[str, int], branch_id: int, history: History) -> dict[str, Mark]:
    """Marks with names that were kept elsewhere, in a history whose tokens are of one epoch."""
    _, epoch = history.end
    return {name: Mark(branch_id, length, history.owner, epoch if length else 0) for name, length in lengths.items()}


def place_of(to: Mark | int, branch_id: int, history: History) -> tuple[int, int | None]:
    """How many tokens a rollback keeps, and the epoch of the last one where that matters.

    Raises InvalidRollback; InvalidInput for what is neither mark nor length. Whether the mark still holds is for the
    engine to say, when it has done what other tasks asked of the branch before.
    """
    if not isinstance(to, Mark):
        length = checked_count(to, "the length to roll back to", 0, 2**63 - 1)
        if length > len(history):
            raise InvalidRollback(
                f"cannot roll branch {branch_id} back to {length} tokens: it has {len(history)}; pass at most that"
            )
        return length, None
    if to._owner is not history.owner:
        raise InvalidRollback(f"{to} does not belong to branch {branch_id}; use a mark of this branch")
    return to.length, to._epoch
