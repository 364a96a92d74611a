"""The conversation of a branch: the token spans of its messages. Immutable; forks share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from agentkv_runtime.formats.parsed import CUT_OFF

from .._types.message import Message, call_id, message_of

if TYPE_CHECKING:
    from array import array

    from agentkv_runtime.text.added_tokens import ControlledText

    from .reply import ReplyReader


@dataclass(frozen=True, slots=True)
class Entry:
    """A message, and its token span in the branch.

    A generated one stores its parsed form, the template's text since the previous generated one, and its spelling by
    the template: with these it is found again in later renderings and stays token for token.
    """

    message: Mapping[str, Any]  # as templates take it
    start: int
    end: int
    given: ControlledText | None = None
    spelled: str = ""
    opening: str = ""  # of its turn: the end of `given`
    read: Message | None = None

    @property
    def told(self) -> Message:
        """The message for users. A call cut off before its name is dropped."""
        if self.read is None:
            return message_of(self.message, self.start, self.end)
        calls = tuple(call for call in self.read.calls if call.name or call.error != CUT_OFF)
        return replace(self.read, calls=calls, start=self.start, end=self.end)


@dataclass(frozen=True, slots=True, eq=False)
class Conversation:
    """The messages of a branch, and the state that the next rendering needs.

    Tokens `start` to `end` are the rendering of `entries[first:]`; those before existed when it began, those behind are
    the assistant's if its turn is `opened`. `tail` is the template's text since the last generated message, and
    `opening` the end of that, which opens the turn. The calls of that turn are numbered from `calls`, and `calls_of` is
    the seed of their ids.
    """

    entries: tuple[Entry, ...] = ()
    first: int = 0
    start: int = 0
    end: int = 0
    tail: ControlledText | None = None
    opening: str = ""
    opened: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    before: Conversation | None = None  # the conversation that it continues
    base: int = 0  # number of tokens of that
    leftover: int = 0  # end of the part of a message that a rollback left
    calls: int = 0
    calls_of: str = ""

    def cut(self, kept: int) -> Conversation:
        """The conversation within the first `kept` tokens. A message that the cut divides becomes residue."""
        conversation = self
        while conversation.before is not None and conversation._came_after(kept):
            conversation = conversation.before
        if kept >= max(conversation.end, conversation.leftover):
            return conversation
        if kept >= conversation.end:
            return replace(conversation, leftover=kept)
        entries = tuple(entry for entry in conversation.entries if entry.end <= kept)
        end = max(conversation.base, entries[-1].end if entries else 0)
        return replace(
            conversation,
            entries=entries,
            first=min(conversation.first, len(entries)),
            end=end,
            tail=None,
            opened=False,
            leftover=kept,
        )

    def _came_after(self, length: int) -> bool:
        """Returns whether a branch of `length` tokens has nothing of it. Messages without tokens yet count from its
        beginning on."""
        return length < self.base or length == self.base < max(self.end, self.leftover)

    def without(self, first: int, last: int, added: int) -> Conversation:
        """The conversation after the tokens at [first, last), with the messages among them, were replaced by `added`
        others."""
        shift = added - (last - first)

        def moved(position: int) -> int:
            return position + shift if position >= last else min(position, first + added)

        def stays(entry: Entry) -> bool:
            return entry.end <= first or entry.start >= last

        entries = tuple(
            replace(entry, start=moved(entry.start), end=moved(entry.end)) if entry.end > first else entry
            for entry in self.entries
            if stays(entry)
        )
        if self.before is not None and first < self.base:
            before, base = self.before.without(first, last, added), moved(self.base)
        else:
            before, base = self.cut(first), min(first, self.end)
        return replace(
            self,
            entries=entries,
            first=sum(map(stays, self.entries[: self.first])),
            start=moved(self.start) if self.start > first else self.start,
            end=moved(self.end) if self.end > first else self.end,
            leftover=moved(self.leftover) if self.leftover > first else self.leftover,
            before=before,
            base=base,
        )

    def call_id(self, index: int) -> str:
        """Id of a call of the assistant's next message; `index` counts from 0."""
        return call_id(self.calls + index, self.calls_of)

    @property
    def begun(self) -> bool:
        """Whether it has messages, or text that the template writes before the first."""
        return bool(self.entries) or self.tail is not None

    def is_opened_at(self, length: int) -> bool:
        """Returns whether a branch of `length` tokens ends where the assistant's turn was opened."""
        return self.opened and length == self.end

    def awaits_turn(self, length: int) -> bool:
        """Returns whether a branch of `length` tokens ends after messages with no turn opened, or before the first
        message."""
        begun = len(self.entries) > self.first or self.tail is not None
        return not self.opened and length == self.end and begun

    def follows(self, length: int) -> bool:
        """Returns whether messages can continue it on a branch of `length` tokens: not after tokens that are no
        message's."""
        return self.opened or length <= max(self.end, self.leftover)

    def after_text(self, length: int, start: int) -> Conversation:
        """Its continuation after tokens that are no message's; the branch's first `start` tokens are not rendered
        again."""
        return replace(
            self,
            first=len(self.entries),
            start=start,
            end=start,
            tail=None,
            opened=False,
            leftover=length,
            before=self,
            base=start,
        )

    def with_reply(self, log: Sequence[int], reader: ReplyReader) -> tuple[Entry, ...]:
        """Its entries, plus the assistant's reply in the open turn, if it has any tokens."""
        if not self.opened or len(log) <= self.end:
            return self.entries
        text, end = reader.text(log, self.end)
        prompt = self.tail.text if self.tail else ""
        read = reader.message(text, prompt, self.tools, self.call_id)
        return (*self.entries, Entry(reader.mapping(read, text), self.end, end, self.tail, text, self.opening, read))

    def messages(self, log: Sequence[int], reader: ReplyReader) -> list[Message]:
        """The messages for users."""
        return [entry.told for entry in self.with_reply(log, reader)]


class Transcript(Protocol):
    """The tokens of a branch, and their conversation."""

    @property
    def tokens(self) -> array[int]:
        """All tokens, int32."""

    @property
    def conversation(self) -> Conversation:
        """The messages of the tokens."""

    @property
    def revision(self) -> int:
        """Number that changes whenever tokens or messages do."""

    def __len__(self) -> int: ...
