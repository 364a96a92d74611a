"""What a branch knows of its conversation: which of its tokens are which messages. Immutable; forks share it."""

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
    """A message, and which tokens of the branch it is.

    A generated one keeps how it is read, what the template wrote before it since the generated one before, and how the
    template spells it: so it is found again in later renderings and stays token for token.
    """

    message: Mapping[str, Any]  # as the template gets it
    start: int
    end: int
    given: ControlledText | None = None
    spelled: str = ""
    opening: str = ""  # of its turn: the end of `given`
    read: Message | None = None

    @property
    def told(self) -> Message:
        """The message as users read it; a call that is cut off before its name is none."""
        if self.read is None:
            return message_of(self.message, self.start, self.end)
        calls = tuple(call for call in self.read.calls if call.name or call.error != CUT_OFF)
        return replace(self.read, calls=calls, start=self.start, end=self.end)


@dataclass(frozen=True, slots=True, eq=False)
class Conversation:
    """The messages that a branch holds, and what its next rendering must know of the last.

    Tokens `start` to `end` are the rendering of `entries[first:]`; those before were there when it began, those behind
    are the assistant's where its turn is `opened`. `tail` is what the template wrote since the last generated message,
    and `opening` the end of it: what opens the turn. The calls of that turn are counted on from `calls`, and their ids
    are made of what they are `calls_of`.
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
    before: Conversation | None = None  # what it goes on from
    base: int = 0  # how many tokens of that
    leftover: int = 0  # up to here the tokens are what a rollback left of a message
    calls: int = 0
    calls_of: str = ""

    def cut(self, kept: int) -> Conversation:
        """What is known of a branch's first `kept` tokens."""
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
        """Did a branch of so many tokens hold nothing of it? Messages that have no tokens yet are there from its
        beginning on."""
        return length < self.base or length == self.base < max(self.end, self.leftover)

    def without(self, first: int, last: int, added: int) -> Conversation:
        """As it is when the tokens at [first, last), and the messages among them, gave way to so many others."""
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
        """The id of a call of the assistant's next message, counted from 0."""
        return call_id(self.calls + index, self.calls_of)

    @property
    def begun(self) -> bool:
        """Does it hold messages, or what the template writes before the first?"""
        return bool(self.entries) or self.tail is not None

    def is_opened_at(self, length: int) -> bool:
        """Does a branch of so many tokens end where the assistant's turn was opened?"""
        return self.opened and length == self.end

    def awaits_turn(self, length: int) -> bool:
        """Is a branch of so many tokens at the end of messages behind which no turn is opened, or before the first?"""
        begun = len(self.entries) > self.first or self.tail is not None
        return not self.opened and length == self.end and begun

    def follows(self, length: int) -> bool:
        """Do messages go on from it on a branch of so many tokens? Not from tokens that are no message's."""
        return self.opened or length <= max(self.end, self.leftover)

    def after_text(self, length: int, start: int) -> Conversation:
        """As it goes on after tokens that are no message's: `start` of the branch's are not to be rendered again."""
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
        """Its entries, and the assistant's turn that is open, if anything of it is there."""
        if not self.opened or len(log) <= self.end:
            return self.entries
        text, end = reader.text(log, self.end)
        prompt = self.tail.text if self.tail else ""
        read = reader.message(text, prompt, self.tools, self.call_id)
        return (*self.entries, Entry(reader.mapping(read, text), self.end, end, self.tail, text, self.opening, read))

    def messages(self, log: Sequence[int], reader: ReplyReader) -> list[Message]:
        """The messages as users read them."""
        return [entry.told for entry in self.with_reply(log, reader)]


class Transcript(Protocol):
    """The tokens of a branch, and the conversation that they are."""

    @property
    def log(self) -> array[int]:
        """All tokens."""

    @property
    def conversation(self) -> Conversation:
        """Which of them are which messages."""

    @property
    def revision(self) -> int:
        """Number that changes with tokens or messages."""

    def __len__(self) -> int: ...
