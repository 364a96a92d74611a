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
    rendered_before: ControlledText | None = None
    raw_text: str = ""
    turn_opening: str = ""  # of its turn: the end of `given`
    parsed: Message | None = None

    @property
    def message_for_users(self) -> Message:
        """The message for users. A call cut off before its name is dropped."""
        if self.parsed is None:
            return message_of(self.message, self.start, self.end)
        calls = tuple(call for call in self.parsed.calls if call.name or call.error != CUT_OFF)
        return replace(self.parsed, calls=calls, start=self.start, end=self.end)


@dataclass(frozen=True, slots=True, eq=False)
class Conversation:
    """The messages of a branch, and the state that the next rendering needs.

    Tokens `start` to `end` are the rendering of `entries[first:]`; those before existed when it began, those behind are
    the assistant's reply if it `awaits_reply`. `tail` is the template's text since the last generated message, and
    `turn_opening` the end of that, which opens the assistant's turn. The calls of that turn are numbered from
    `first_call`, and `call_seed` is the seed of their ids.
    """

    entries: tuple[Entry, ...] = ()
    first: int = 0
    start: int = 0
    end: int = 0
    tail: ControlledText | None = None
    turn_opening: str = ""
    awaits_reply: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    previous: Conversation | None = None  # the conversation that it continues
    previous_length: int = 0  # number of tokens of that
    residue_end: int = 0  # end of the part of a message that a rollback left
    first_call: int = 0
    call_seed: str = ""

    def cut(self, kept: int) -> Conversation:
        """The conversation within the first `kept` tokens. A message that the cut divides becomes residue."""
        conversation = self
        while conversation.previous is not None and conversation._came_after(kept):
            conversation = conversation.previous
        if kept >= max(conversation.end, conversation.residue_end):
            return conversation
        if kept >= conversation.end:
            return replace(conversation, residue_end=kept)
        entries = tuple(entry for entry in conversation.entries if entry.end <= kept)
        end = max(conversation.previous_length, entries[-1].end if entries else 0)
        return replace(
            conversation,
            entries=entries,
            first=min(conversation.first, len(entries)),
            end=end,
            tail=None,
            awaits_reply=False,
            residue_end=kept,
        )

    def _came_after(self, length: int) -> bool:
        """Returns whether a branch of `length` tokens has nothing of it. Messages without tokens yet count from its
        beginning on."""
        return length < self.previous_length or length == self.previous_length < max(self.end, self.residue_end)

    def without_span(self, first: int, last: int, added: int) -> Conversation:
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
        if self.previous is not None and first < self.previous_length:
            previous, previous_length = self.previous.without_span(first, last, added), moved(self.previous_length)
        else:
            previous, previous_length = self.cut(first), min(first, self.end)
        return replace(
            self,
            entries=entries,
            first=sum(map(stays, self.entries[: self.first])),
            start=moved(self.start) if self.start > first else self.start,
            end=moved(self.end) if self.end > first else self.end,
            residue_end=moved(self.residue_end) if self.residue_end > first else self.residue_end,
            previous=previous,
            previous_length=previous_length,
        )

    def call_id(self, index: int) -> str:
        """Id of a call of the assistant's next message; `index` counts from 0."""
        return call_id(self.first_call + index, self.call_seed)

    @property
    def begun(self) -> bool:
        """Whether it has messages, or text that the template writes before the first."""
        return bool(self.entries) or self.tail is not None

    def awaits_reply_at(self, length: int) -> bool:
        """Returns whether a branch of `length` tokens ends where the assistant's turn was opened."""
        return self.awaits_reply and length == self.end

    def needs_turn_at(self, length: int) -> bool:
        """Returns whether a branch of `length` tokens ends after messages with no turn opened, or before the first
        message."""
        begun = len(self.entries) > self.first or self.tail is not None
        return not self.awaits_reply and length == self.end and begun

    def can_continue_at(self, length: int) -> bool:
        """Returns whether messages can continue it on a branch of `length` tokens: not after tokens that are no
        message's."""
        return self.awaits_reply or length <= max(self.end, self.residue_end)

    def after_text(self, length: int, start: int) -> Conversation:
        """Its continuation after tokens that are no message's; the branch's first `start` tokens are not rendered
        again."""
        return replace(
            self,
            first=len(self.entries),
            start=start,
            end=start,
            tail=None,
            awaits_reply=False,
            residue_end=length,
            previous=self,
            previous_length=start,
        )

    def with_reply(self, log: Sequence[int], reader: ReplyReader) -> tuple[Entry, ...]:
        """Its entries, plus the assistant's reply in the open turn, if it has any tokens."""
        if not self.awaits_reply or len(log) <= self.end:
            return self.entries
        text, end = reader.text(log, self.end)
        prompt = self.tail.text if self.tail else ""
        parsed = reader.message(text, prompt, self.tools, self.call_id)
        return (
            *self.entries,
            Entry(reader.mapping(parsed, text), self.end, end, self.tail, text, self.turn_opening, parsed),
        )

    def messages(self, log: Sequence[int], reader: ReplyReader) -> list[Message]:
        """The messages for users."""
        return [entry.message_for_users for entry in self.with_reply(log, reader)]


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
