"""Conversations in a trace; common parts are recorded once."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from time import perf_counter_ns as now
from typing import Any

from pydantic import ValidationError

from .._chat.conversation import Conversation, Entry
from .._documents.conversations import SavedConversations, SavedEntry, SavedState
from .._types.errors import AgentKVError, TraceError
from .records import Conversed, ValueRecord

_KEPT = 4096  # values that records may refer to; older ones are recorded again


class ConversationTracer:
    """Makes records of conversations.

    Args:
        put: receives the values that records refer to, before the records.
    """

    def __init__(self, put: Callable[[ValueRecord], None]) -> None:
        self._put = put
        self._known: OrderedDict[tuple[str, int], tuple[int, object]] = OrderedDict()  # number, object to keep alive
        self._told = 0

    def conversed(self, branch: int, conversation: Conversation) -> Conversed:
        """Makes the record of a branch's current conversation."""
        return Conversed(
            now(),
            branch,
            [(self._message(each), each.start, each.end, each.parsed is not None) for each in conversation.entries],
            -1 if conversation.tools is None else self._tools(conversation.tools),
            json_of(dict(conversation.template)),
            conversation.awaits_reply,
            self._state(conversation),
        )

    def _message(self, entry: Entry) -> int:
        return self._number("message", entry, lambda: entry.message)

    def _entry(self, entry: Entry) -> int:
        return self._number("entry", entry, lambda: SavedEntry.of(entry).model_dump(mode="json"))

    def _tools(self, tools: object) -> int:
        return self._number("tools", tools, lambda: tools)

    def _state(self, last: Conversation) -> int:
        chain = [last]
        while chain[-1].previous is not None and ("state", id(chain[-1])) not in self._known:
            chain.append(chain[-1].previous)
        before: int | None = None
        for state in reversed(chain):
            before = self._number("state", state, lambda s=state, b=before: self._saved(s, b))  # type: ignore[misc]
        assert before is not None
        return before

    def _saved(self, state: Conversation, before: int | None) -> object:
        return SavedState.of(state, before, self._entry, self._tools).model_dump(mode="json")

    def _number(self, kind: str, owner: object, value: Callable[[], object]) -> int:
        """Number of an object's value, which is recorded first where it is not known."""
        known = self._known.get((kind, id(owner)))
        if known is not None:
            self._known.move_to_end((kind, id(owner)))
            return known[0]
        text = json_of(value())  # may record other values
        self._told += 1
        self._known[kind, id(owner)] = self._told, owner
        self._put(ValueRecord(self._told, text))
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return self._told


def conversation_of(values: Mapping[int, str], state: int) -> Conversation:
    """Restores the conversation whose state has this number among the recorded values. Raises TraceError."""
    try:
        numbers = [state]
        while (before := json.loads(values[numbers[-1]])["before"]) is not None:
            if before >= numbers[-1]:
                raise ValueError("a conversation goes on from a later one")
            numbers.append(before)
        numbers.reverse()
        entries: dict[int, int] = {}
        tools: dict[int, int] = {}
        states = []
        for place, number in enumerate(numbers):
            told = json.loads(values[number])
            told["before"] = place - 1 if place else None
            told["entries"] = tuple(entries.setdefault(each, len(entries)) for each in told["entries"])
            if told["tools"] is not None:
                told["tools"] = tools.setdefault(told["tools"], len(tools))
            states.append(told)
        document = {
            "entries": [json.loads(values[each]) for each in entries],
            "tools": [json.loads(values[each]) for each in tools],
            "states": states,
        }
        return SavedConversations.model_validate_json(json.dumps(document)).made()[-1]
    except (LookupError, TypeError, ValueError, ValidationError, AgentKVError) as error:
        raise TraceError(f"the trace is damaged: a conversation cannot be read: {error}") from error


def json_of(value: Any) -> str:
    """JSON of a value; for values without JSON, their repr as a JSON string."""
    try:
        return json.dumps(value, default=repr)
    except (ValueError, TypeError, RecursionError):  # keys of other types, say
        return json.dumps(repr(value))
