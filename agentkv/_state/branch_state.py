"""The event loop's copy of the branches' tokens, updated by the engine's change reports, and their conversations."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
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
    """Cells of a branch that are offloaded from the cache."""

    @property
    def moves(self) -> bool:
        """Whether they are on their way."""
        ...

    @property
    def first_back(self) -> Reloadable:
        """What comes back before them, or themselves."""
        ...

    async def reload(self) -> None:
        """Brings them back into the cache, bit for bit."""

    async def drop(self, branch: BranchState) -> None:
        """Gives up what one branch has there, for good."""

    def leave(self, branch: BranchState) -> None:
        """A branch does not wait for them any more."""


class Lease(Protocol):
    """One turn's exclusive right to change a branch, able to go back to the turn's beginning.

    Attributes:
        start: number of tokens from before the turn that are still in the branch.
    """

    start: int

    def take_over_copy(self, kept: int, before: int) -> bool:
        """Called when the branch lost all but its first `kept` tokens; the branch `before` is a copy with them. Returns
        True if the lease takes that copy over."""

    def needs_copy(self, kept: int) -> bool:
        """Returns whether to copy the branch before it loses all but its first `kept` tokens."""

    def note_room_made(self, tokens: int, messages: int, before: int | None) -> None:
        """Called when tokens and messages from before the turn were dropped: `tokens` and `messages` more; `before` is
        the copy, if any."""


class _Blocks(AbstractContextManager[None]):
    """Counts the `with` blocks of itself that run."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *error: object) -> None:
        self.count -= 1


class BranchState:
    """The tokens and messages of one branch, as of its last completed method.

    `tip` identifies the history as the engine does: its length, and the epoch of its last token.
    `pending_conversation` is the conversation after the running extend; a fork takes the part that it has tokens of.
    `lease` is the turn with the exclusive right to change the branch; None if there is none.
    """

    __slots__ = (
        "_jobs",
        "_observers",
        "_uses",
        "adapter",
        "conversation",
        "id",
        "lease",
        "making_room",
        "mark_scope",
        "marks",
        "offloaded",
        "pending_conversation",
        "revision",
        "tip",
        "tokens",
        "used_at",
    )

    def __init__(self, branch: int, observers: Observers) -> None:
        self.id = branch
        self._observers = observers
        self.tokens = array("i")
        self.tip = (0, 0)
        self.conversation = Conversation()
        self.pending_conversation: Conversation | None = None
        self.revision = 0  # of tokens and messages
        self.mark_scope = object()  # of the marks of this history
        self.lease: Lease | None = None
        self.offloaded: Reloadable | None = None  # cells that wait outside of the cache
        self.making_room = False  # a policy makes room for the branch
        self._uses = _Blocks()
        self._jobs = _Blocks()
        self.adapter = 0  # the engine's id of the next token's; 0 for none
        self.marks: dict[str, Mark] = {}  # valid named marks
        self.used_at = 0.0  # when a method on it ended last, by `time.monotonic`

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_in_use(self) -> bool:
        """Whether something needs its cells, though no job runs on it."""
        return self._uses.count > 0

    def in_use(self) -> AbstractContextManager[None]:
        """Block that needs its cells, beside those of other branches, say: it gives none up meanwhile."""
        return self._uses

    @property
    def is_running(self) -> bool:
        """Whether a method runs a job on it."""
        return self._jobs.count > 0

    def running(self) -> AbstractContextManager[None]:
        """Block of a method that runs a job on it."""
        return self._jobs

    def touch(self) -> None:
        """Notes that the branch is in use at this moment."""
        self.used_at = time.monotonic()

    def change(self, kept: int, appended: bytes, epoch: int, adapter: int) -> None:
        """Truncates to `kept` tokens and appends int32 ones; the last one is of `epoch` then, and the next one of
        `adapter`."""
        self.touch()
        self.revision += 1
        self.conversation = self.conversation.cut(kept)
        if kept < len(self.tokens):
            self.marks = {name: mark for name, mark in self.marks.items() if mark.length <= kept}
        del self.tokens[kept:]
        self.tokens.frombytes(appended)
        self.tip = (len(self.tokens), epoch)
        self.adapter = adapter

    def set_conversation(self, conversation: Conversation) -> None:
        """Replaces the conversation and notifies observers; the tokens stay."""
        self.revision += 1
        self.conversation = conversation
        self.pending_conversation = None
        self._observers.converse(self.id, conversation)

    def restore(self, conversation: Conversation, marks: Mapping[str, int]) -> None:
        """Sets a loaded conversation and its named marks; all tokens are of one epoch."""
        self.set_conversation(conversation)
        _, epoch = self.tip
        self.marks = {name: self.mark_at(length, epoch if length else 0) for name, length in marks.items()}

    def mark(self) -> Mark:
        """A mark at the end of the branch."""
        return self.mark_at(*self.tip)

    def resolve(self, to: Mark | int) -> tuple[int, int | None]:
        """Number of tokens that a rollback keeps, and the epoch of the last one for a mark, else None.

        Raises InvalidRollback; InvalidInput for an argument that is neither mark nor length. Whether the mark is still
        valid is the engine's decision, after the branch's earlier commands.
        """
        if not isinstance(to, Mark):
            length = checked_count(to, "the length to roll back to", 0)
            if length > len(self):
                raise InvalidRollback(
                    f"cannot roll branch {self.id} back to {length} tokens: it has {len(self)}; pass at most that"
                )
            return length, None
        if to.scope is not self.mark_scope:
            raise InvalidRollback(f"{to} does not belong to branch {self.id}; use a mark of this branch")
        return to.length, to.epoch

    def mark_at(self, length: int, epoch: int) -> Mark:
        """A mark after `length` tokens, the last of which is of this epoch."""
        return Mark(self.id, length, self.mark_scope, epoch)


class BranchStates:
    """State of all branches of a Context. Only the engine's changes, applied in its order, alter tokens.

    Attributes:
        on_change: called once branches have changed, or were closed.
    """

    def __init__(self, observers: Observers) -> None:
        self.observers = observers
        self._of: dict[int, BranchState] = {}
        self.on_change: Callable[[], None] = lambda: None
        self.trained_positions: int | None = None  # of the model; None also once the warning was logged

    def forget_listener(self) -> None:
        """Calls nobody any more: who is called refers to the step loop, and that to these states."""
        self.on_change = lambda: None

    def __getitem__(self, branch: int) -> BranchState:
        return self._of[branch]

    def apply(self, changes: Iterable[LogChange]) -> None:
        """Applies the engine's changes; a new branch begins empty."""
        for change in changes:
            history = self._of.get(change.branch)
            if history is None:
                history = self._of[change.branch] = BranchState(change.branch, self.observers)
            history.change(change.kept, change.appended, change.epoch, change.adapter)
            if self.trained_positions is not None and len(history) > self.trained_positions:
                log.warning(
                    "a branch is longer than what its model was trained on; it may say worse things from there on",
                    branch=change.branch,
                    tokens=len(history),
                    trained_positions=self.trained_positions,
                )
                self.trained_positions = None
        self.on_change()

    def copy_conversation(self, source: int, branches: Iterable[int]) -> None:
        """Copies a branch's conversation to others, cut to the tokens that they have."""
        parent = self._of.get(source)
        if parent is None:
            return
        for branch in branches:
            history = self._of.get(branch)
            if history is not None:
                conversation = parent.pending_conversation or parent.conversation
                history.set_conversation(conversation.cut(len(history)))

    def drop(self, branch: int) -> None:
        """Forgets a closed branch and its offloaded cells."""
        history = self._of.pop(branch, None)
        if history is not None and history.offloaded is not None:
            offloaded, history.offloaded = history.offloaded, None
            offloaded.leave(history)
        self.on_change()
