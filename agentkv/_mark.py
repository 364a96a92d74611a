"""Points in a branch's history to roll back to."""

from __future__ import annotations

from dataclasses import dataclass, field

from ._errors import InvalidRollback
from ._history import History
from ._inputs import checked_count


@dataclass(frozen=True, slots=True)
class Mark:
    """A point in a branch's history to roll back to. Made by `Branch.mark`.

    It holds as long as the branch still has the history before it: rolling back behind it, or adopting a history that
    differs before it, makes it invalid for good.

    Attributes:
        branch_id: the branch that it belongs to.
        length: tokens before it.
    """

    branch_id: int
    length: int
    _owner: object = field(repr=False)  # tells branches of different Contexts apart
    _time: int = field(repr=False)


def make_mark(branch_id: int, history: History) -> Mark:
    """A mark at the end of a history."""
    return Mark(branch_id, len(history), history.owner, history.time)


def length_at(to: Mark | int, branch_id: int, history: History) -> int:
    """How many tokens a rollback keeps. Raises InvalidRollback; InvalidInput for what is neither mark nor length."""
    if not isinstance(to, Mark):
        length = checked_count(to, "the length to roll back to", 0)
    else:
        length = to.length
        if to._owner is not history.owner:
            raise InvalidRollback(f"{to} does not belong to branch {branch_id}; use a mark of this branch")
        kept = history.kept_since(to._time)
        if kept is not None and kept < length:
            raise InvalidRollback(
                f"{to} is of history that was rewritten: since then branch {branch_id} kept only {kept} tokens of it; "
                "take a new mark"
            )
    if length > len(history):
        raise InvalidRollback(
            f"cannot roll branch {branch_id} back to {length} tokens: it has {len(history)}; pass at most that"
        )
    return length
