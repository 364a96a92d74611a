"""Conversations in a trace: what they have in common is told once."""

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
from .records import Conversed, Told

_KEPT = 4096  # values that records may refer to; older ones are told again


class Teller:
    """Makes records of conversations.

    Args:
        put: takes the values that records refer to, before these.
    """

    def __init__(self, put: Callable[[Told], None]) -> None:
        self._put = put
        self._known: OrderedDict[tuple[str, int], tuple[int, object]] = OrderedDict()  # number, what keeps it alive
        self._told = 0

    def conversed(self, branch: int, conversation: Conversation) -> Conversed:
        """The record of a branch whose tokens are this conversation now."""
        return Conversed(
            now(),
            branch,
            [(self._message(each), each.start, each.end, each.read is not None) for each in conversation.entries],
            -1 if conversation.tools is None else self._tools(conversation.tools),
            json_of(dict(conversation.template)),
            conversation.opened,
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
        while chain[-1].before is not None and ("state", id(chain[-1])) not in self._known:
            chain.append(chain[-1].before)
        before: int | None = None
        for state in reversed(chain):
            before = self._number("state", state, lambda s=state, b=before: self._saved(s, b))  # type: ignore[misc]
        assert before is not None
        return before

    def _saved(self, state: Conversation, before: int | None) -> object:
        return SavedState.of(state, before, self._entry, self._tools).model_dump(mode="json")

    def _number(self, kind: str, owner: object, value: Callable[[], object]) -> int:
        """Of what was told of an object, or is told now."""
        known = self._known.get((kind, id(owner)))
        if known is not None:
            self._known.move_to_end((kind, id(owner)))
            return known[0]
        text = json_of(value())  # it may tell others
        self._told += 1
        self._known[kind, id(owner)] = self._told, owner
        self._put(Told(self._told, text))
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return self._told


def conversation_of(values: Mapping[int, str], state: int) -> Conversation:
    """The conversation whose state has this number among what was told. Raises TraceError."""
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
    """Its JSON; of what has none, the repr in JSON."""
    try:
        return json.dumps(value, default=repr)
    except (ValueError, TypeError, RecursionError):  # keys of other types, say
        return json.dumps(repr(value))
