"""The event loop's copy of the branches' tokens, kept by the changes that the engine tells; the conversations that they
are; and which marks hold."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ._conversation import Conversation

if TYPE_CHECKING:
    from ._engine import LogChange
    from ._hold import Hold


class History:
    """The tokens of one branch, as of its last verb that ended, their messages, and the record of their rewrites.

    `coming` is what the messages are once the extend that runs has ended: a fork may take what of it is there.
    A mark taken at time `t` with length `n` holds as long as no rewrite since `t` kept fewer than `n` tokens.
    `_floors_time` and `_floors_kept` both rise: since just before each time, so many tokens were kept at the least.

    `hold` is who alone may change the branch for now; None where anybody may.
    """

    __slots__ = (
        "_floors_kept",
        "_floors_time",
        "coming",
        "conversation",
        "hold",
        "log",
        "owner",
        "revision",
        "time",
    )

    def __init__(self) -> None:
        self.log = array("i")
        self.conversation = Conversation()
        self.coming: Conversation | None = None
        self.revision = 0  # of tokens and messages
        self.owner = object()  # of the marks of this history
        self.hold: Hold | None = None
        self.time = 0
        self._floors_time: list[int] = []
        self._floors_kept: list[int] = []

    def __len__(self) -> int:
        return len(self.log)

    def change(self, kept: int, appended: bytes) -> None:
        """Keeps the first `kept` tokens and adds others, int32."""
        self.revision += 1
        self.conversation = self.conversation.cut(kept)
        if kept < len(self.log):
            self._record_rewrite(kept)
            del self.log[kept:]
        self.log.frombytes(appended)

    def converse(self, conversation: Conversation) -> None:
        """The tokens are those of another conversation."""
        self.revision += 1
        self.conversation = conversation
        self.coming = None

    def kept_since(self, time: int) -> int | None:
        """The fewest tokens that any rewrite after `time` kept; None when there was none."""
        first = bisect_right(self._floors_time, time)
        return self._floors_kept[first] if first < len(self._floors_time) else None

    def _record_rewrite(self, kept: int) -> None:
        self.time += 1
        while self._floors_kept and self._floors_kept[-1] >= kept:
            self._floors_kept.pop()
            self._floors_time.pop()
        self._floors_kept.append(kept)
        self._floors_time.append(self.time)


class Histories:
    """The histories of a Context's branches. The engine's changes, applied in its order, are all that alters them."""

    def __init__(self) -> None:
        self._of: dict[int, History] = {}

    def __getitem__(self, branch: int) -> History:
        return self._of[branch]

    def apply(self, changes: Iterable[LogChange]) -> None:
        """Takes over what the engine did; a branch that is new begins empty."""
        for change in changes:
            history = self._of.get(change.branch)
            if history is None:
                history = self._of[change.branch] = History()
            history.change(change.kept, change.appended)

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
        self._of.pop(branch, None)
