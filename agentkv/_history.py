"""The event loop's copy of the branches' tokens, kept by the changes that the engine tells, and the conversations that
they are."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ._conversation import Conversation
from ._log import log
from ._observers import Observers

if TYPE_CHECKING:
    from ._engine import LogChange
    from ._hold import Hold
    from ._mark import Mark
    from ._offloading import Aside


class History:
    """The tokens of one branch, as of its last verb that ended, and their messages.

    `end` names the history as the engine does: its length, and the epoch of its last token.
    `coming` is what the messages are once the extend that runs has ended: a fork may take what of it is there.
    `hold` is who alone may change the branch for now; None where anybody may.
    """

    __slots__ = (
        "_branch",
        "_observers",
        "aside",
        "asking",
        "coming",
        "conversation",
        "end",
        "hold",
        "log",
        "marks",
        "owner",
        "revision",
    )

    def __init__(self, branch: int, observers: Observers) -> None:
        self._branch = branch
        self._observers = observers
        self.log = array("i")
        self.end = (0, 0)
        self.conversation = Conversation()
        self.coming: Conversation | None = None
        self.revision = 0  # of tokens and messages
        self.owner = object()  # of the marks of this history
        self.hold: Hold | None = None
        self.aside: Aside | None = None  # cells that wait outside of the cache
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
        self._observers.converse(self._branch, conversation)


class Histories:
    """The histories of a Context's branches. The engine's changes, applied in its order, are all that alters them."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._of: dict[int, History] = {}
        self.trained_positions: int | None = None  # of the model; None once somebody was told, too

    def __getitem__(self, branch: int) -> History:
        return self._of[branch]

    def apply(self, changes: Iterable[LogChange]) -> None:
        """Takes over what the engine did; a branch that is new begins empty."""
        for change in changes:
            history = self._of.get(change.branch)
            if history is None:
                history = self._of[change.branch] = History(change.branch, self._observers)
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
