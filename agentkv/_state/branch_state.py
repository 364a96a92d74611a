"""The event loop's copy of the branches' tokens, kept by the changes that the engine tells, and the conversations that
they are."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from .._chat.conversation import Conversation
from .._types.checks import checked_count
from .._types.errors import InvalidRollback
from .._types.log import log
from .._types.mark import Mark
from .observers import Observers

if TYPE_CHECKING:
    from .._engine.interface import LogChange


class Reloadable(Protocol):
    """Cells of a branch that wait outside of the cache."""

    async def reload(self) -> None:
        """Brings them back, with the same bits."""


class Lease(Protocol):
    """The right of one turn to change a branch, which can go back to where the turn began.

    Attributes:
        start: tokens of the branch from before the turn, as far as they still are.
    """

    start: int

    def rewritten(self, kept: int, before: int) -> bool:
        """The branch lost all but its first `kept` tokens, and the branch `before` has them. True where it takes that
        branch over."""

    def needs(self, kept: int) -> bool:
        """Is a copy to be taken of the branch before it loses all but its first `kept` tokens?"""

    def moved(self, tokens: int, messages: int, before: int | None) -> None:
        """Tokens from before the turn gave way to so many more, messages among them; `before` is the copy, if any."""


class History:
    """The tokens of one branch, as of its last verb that ended, and their messages.

    `end` names the history as the engine does: its length, and the epoch of its last token.
    `coming` is what the messages are once the extend that runs has ended: a fork may take what of it is there.
    `hold` is who alone may change the branch for now; None where anybody may.
    """

    __slots__ = (
        "_observers",
        "aside",
        "asking",
        "coming",
        "conversation",
        "end",
        "hold",
        "id",
        "log",
        "marks",
        "owner",
        "revision",
    )

    def __init__(self, branch: int, observers: Observers) -> None:
        self.id = branch
        self._observers = observers
        self.log = array("i")
        self.end = (0, 0)
        self.conversation = Conversation()
        self.coming: Conversation | None = None
        self.revision = 0  # of tokens and messages
        self.owner = object()  # of the marks of this history
        self.hold: Lease | None = None
        self.aside: Reloadable | None = None  # cells that wait outside of the cache
        self.asking = False  # a policy makes room for the branch
        self.marks: dict[str, Mark] = {}  # those with a name that hold

    def __len__(self) -> int:
        return len(self.log)

    def change(self, kept: int, appended: bytes, epoch: int) -> None:
        """Keeps the first `kept` tokens and adds others, int32; the last one is of the epoch then."""
        self.revision += 1
        self.conversation = self.conversation.cut(kept)
        if kept < len(self.log):
            self.marks = {name: mark for name, mark in self.marks.items() if mark.length <= kept}
        del self.log[kept:]
        self.log.frombytes(appended)
        self.end = (len(self.log), epoch)

    def converse(self, conversation: Conversation) -> None:
        """The tokens are those of another conversation."""
        self.revision += 1
        self.conversation = conversation
        self.coming = None
        self._observers.converse(self.id, conversation)

    def restore(self, conversation: Conversation, marks: Mapping[str, int]) -> None:
        """The tokens, all of one epoch, are those of a conversation that was kept elsewhere, with marks by name."""
        self.converse(conversation)
        _, epoch = self.end
        self.marks = {name: self.mark_at(length, epoch if length else 0) for name, length in marks.items()}

    def mark(self) -> Mark:
        """A mark at the end."""
        return self.mark_at(*self.end)

    def resolve(self, to: Mark | int) -> tuple[int, int | None]:
        """How many tokens a rollback keeps, and the epoch of the last one where that matters.

        Raises InvalidRollback; InvalidInput for what is neither mark nor length. Whether the mark still holds is for
        the engine to say, when it has done what other tasks asked of the branch before.
        """
        if not isinstance(to, Mark):
            length = checked_count(to, "the length to roll back to", 0, 2**63 - 1)
            if length > len(self):
                raise InvalidRollback(
                    f"cannot roll branch {self.id} back to {length} tokens: it has {len(self)}; pass at most that"
                )
            return length, None
        if to._owner is not self.owner:
            raise InvalidRollback(f"{to} does not belong to branch {self.id}; use a mark of this branch")
        return to.length, to._epoch

    def mark_at(self, length: int, epoch: int) -> Mark:
        """A mark behind `length` tokens, the last of which is of this epoch."""
        return Mark(self.id, length, self.owner, epoch)


class Histories:
    """The histories of a Context's branches. The engine's changes, applied in its order, are all that alters them."""

    def __init__(self, observers: Observers) -> None:
        self.observers = observers
        self._of: dict[int, History] = {}
        self.trained_positions: int | None = None  # of the model; None once somebody was told, too

    def __getitem__(self, branch: int) -> History:
        return self._of[branch]

    def apply(self, changes: Iterable[LogChange]) -> None:
        """Takes over what the engine did; a branch that is new begins empty."""
        for change in changes:
            history = self._of.get(change.branch)
            if history is None:
                history = self._of[change.branch] = History(change.branch, self.observers)
            history.change(change.kept, change.appended, change.epoch)
            if self.trained_positions is not None and len(history) > self.trained_positions:
                log.warning(
                    "a branch is longer than what its model was trained on; it may say worse things from there on",
                    branch=change.branch,
                    tokens=len(history),
                    trained_positions=self.trained_positions,
                )
                self.trained_positions = None

    def share(self, source: int, branches: Iterable[int]) -> None:
        """Other branches took over the messages of one, as far as they have its tokens."""
        parent = self._of.get(source)
        if parent is None:
            return
        for branch in branches:
            history = self._of.get(branch)
            if history is not None:
                conversation = parent.coming or parent.conversation
                history.converse(conversation.cut(len(history)))

    def drop(self, branch: int) -> None:
        """The branch was closed."""
        history = self._of.pop(branch, None)
        if history is not None:
            history.aside = None  # what it kept outside of the cache is nobody's
