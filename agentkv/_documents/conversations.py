"""Conversations in a file of saved branches; common parts are written once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from agentkv_runtime.text.added_tokens import Control, ControlledText
from pydantic import BaseModel, ConfigDict, Field

from .._chat.conversation import Conversation, Entry
from .._chat.messages import checked_messages, checked_template, checked_tools
from .._types.message import Message, calls_before

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Name = Annotated[str, Field(min_length=1)]


class DocumentModel(BaseModel):
    """Base of all parts of a saved document: strict types, no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")


class SavedOutput(DocumentModel):
    """The last constrained output of a branch."""

    grammar: str
    began: Count
    end: Count
    complete: bool


class SavedText(DocumentModel):
    """Saved form of a ControlledText."""

    text: str
    controls: tuple[tuple[Count, Count, Count], ...] | None

    @classmethod
    def of(cls, text: ControlledText | None) -> SavedText | None:
        """Saves a text."""
        if text is None:
            return None
        return cls(
            text=text.text,
            controls=None if text.controls is None else tuple((c.start, c.end, c.id) for c in text.controls),
        )

    def made(self) -> ControlledText:
        """Restores the text."""
        controls = None if self.controls is None else [Control(*control) for control in self.controls]
        return ControlledText(self.text, controls)


class SavedEntry(DocumentModel):
    """A message and its token span."""

    message: dict[str, Any]
    start: Count
    end: Count
    given: SavedText | None
    spelled: str
    opening: str
    read: Message | None

    @classmethod
    def of(cls, entry: Entry) -> SavedEntry:
        """Saves an entry."""
        return cls(
            message=dict(entry.message),
            start=entry.start,
            end=entry.end,
            given=SavedText.of(entry.rendered_before),
            spelled=entry.raw_text,
            opening=entry.turn_opening,
            read=entry.parsed,
        )

    def made(self) -> Entry:
        """Restores the entry. Raises InvalidInput for an invalid message, ValueError for an invalid span."""
        checked_messages([self.message])
        _check(self.start <= self.end, "a message that ends before it begins")
        given = None if self.given is None else self.given.made()
        return Entry(self.message, self.start, self.end, given, self.spelled, self.opening, self.read)


class SavedState(DocumentModel):
    """One Conversation: the first `kept` entries of the one before it, then `entries`."""

    before: Count | None
    kept: Count
    entries: tuple[Count, ...]
    first: Count
    start: Count
    end: Count
    tail: SavedText | None
    opening: str
    opened: bool
    tools: Count | None
    template: dict[str, Any]
    base: Count
    leftover: Count
    calls: Count | None = None  # absent in older files
    calls_of: str = ""

    @classmethod
    def of(
        cls,
        state: Conversation,
        before: int | None,
        entry: Callable[[Entry], int],
        tools: Callable[[Sequence[Mapping[str, Any]]], int],
    ) -> SavedState:
        """Saves a conversation; `entry` and `tools` give the indices of the parts that it refers to."""
        kept = _common(() if state.previous is None else state.previous.entries, state.entries)
        return cls(
            before=before,
            kept=kept,
            entries=tuple(map(entry, state.entries[kept:])),
            first=state.first,
            start=state.start,
            end=state.end,
            tail=SavedText.of(state.tail),
            opening=state.turn_opening,
            opened=state.awaits_reply,
            tools=None if state.tools is None else tools(state.tools),
            template=dict(state.template),
            base=state.previous_length,
            leftover=state.residue_end,
            calls=state.first_call,
            calls_of=state.call_seed,
        )


class SavedConversations(DocumentModel):
    """The conversations of several branches, each state after the one that it continues."""

    entries: tuple[SavedEntry, ...] = ()
    tools: tuple[list[dict[str, Any]], ...] = ()
    states: tuple[SavedState, ...] = ()

    def made(self) -> list[Conversation]:
        """Restores the conversations. Raises InvalidInput or ValueError for an invalid one."""
        entries = [entry.made() for entry in self.entries]
        for tools in self.tools:
            checked_tools(tools)
        made: list[Conversation] = []
        for state in self.states:
            made.append(self._state(state, made, entries))
        return made

    def _state(self, state: SavedState, earlier: Sequence[Conversation], entries: Sequence[Entry]) -> Conversation:
        _check(state.before is None or state.before < len(earlier), "a conversation that goes on from a later one")
        _check(all(i < len(entries) for i in state.entries), "a message that is not there")
        _check(state.tools is None or state.tools < len(self.tools), "tools that are not there")
        checked_template(state.template, known=True)
        previous = None if state.before is None else earlier[state.before]
        shared = () if previous is None else previous.entries
        _check(state.kept <= len(shared), "more messages kept than there were")
        all_entries = (*shared[: state.kept], *(entries[i] for i in state.entries))
        _check(
            state.first <= len(all_entries) and state.start <= state.end, "a conversation that ends before it begins"
        )
        _check(
            previous is None or previous.end <= state.base, "a conversation that begins before the one before it ends"
        )
        return Conversation(
            entries=all_entries,
            first=state.first,
            start=state.start,
            end=state.end,
            tail=None if state.tail is None else state.tail.made(),
            turn_opening=state.opening,
            awaits_reply=state.opened,
            tools=None if state.tools is None else self.tools[state.tools],
            template=state.template,
            previous=previous,
            previous_length=state.base,
            residue_end=state.leftover,
            first_call=calls_before(entry.message for entry in all_entries) if state.calls is None else state.calls,
            call_seed=state.calls_of,
        )


class ConversationWriter:
    """Collects the conversations of the branches of one file."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[int, Entry]] = {}  # by identity: index, and what keeps it alive
        self._saved: list[SavedEntry] = []
        self._tools: list[list[dict[str, Any]]] = []
        self._states: list[SavedState] = []
        self._of: dict[int, tuple[int, Conversation]] = {}

    def add(self, conversation: Conversation) -> int:
        """Adds a conversation with those that it continues; returns its index."""
        chain: list[Conversation] = []
        state: Conversation | None = conversation
        while state is not None and id(state) not in self._of:
            chain.append(state)
            state = state.previous
        for state in reversed(chain):
            self._of[id(state)] = len(self._states), state
            self._states.append(self._state(state))
        return self._of[id(conversation)][0]

    def result(self) -> SavedConversations:
        """All conversations added."""
        return SavedConversations(entries=tuple(self._saved), tools=tuple(self._tools), states=tuple(self._states))

    def _state(self, state: Conversation) -> SavedState:
        before = None if state.previous is None else self._of[id(state.previous)][0]
        return SavedState.of(state, before, self._entry, self._index_of_tools)

    def _entry(self, entry: Entry) -> int:
        if id(entry) not in self._entries:
            self._entries[id(entry)] = len(self._saved), entry
            self._saved.append(SavedEntry.of(entry))
        return self._entries[id(entry)][0]

    def _index_of_tools(self, tools: Sequence[Mapping[str, Any]]) -> int:
        listed = [dict(tool) for tool in tools]
        if listed not in self._tools:
            self._tools.append(listed)
        return self._tools.index(listed)


def reach_of(conversation: Conversation, marks: Mapping[str, int]) -> int:
    """Number of tokens that a branch needs to cover its messages and named marks."""
    ends = [entry.end for entry in conversation.entries]
    return max(conversation.end, conversation.residue_end, *ends, *marks.values(), 0)


def _common(one: Sequence[Entry], other: Sequence[Entry]) -> int:
    """Length of the common prefix of two entry sequences, by identity."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a is not b), min(len(one), len(other)))


def _check(ok: bool, what: str) -> None:
    if not ok:
        raise ValueError(what)
