"""Moves each tool result behind the call that it answers, in any order of arrival."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._types.errors import InvalidInput
from .._types.message import call_id
from .._types.show import preview

_PLAIN = re.compile("[A-Za-z0-9]{9}")


@dataclass(slots=True)
class _Turn:
    """Consecutive messages of the assistant, and the others up to its next one, by their indices."""

    messages: Sequence[Mapping[str, Any]]
    said: list[int] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)

    @property
    def follows(self) -> bool:
        """Whether any message follows the assistant's."""
        return bool(self.results or self.others)

    @property
    def calls(self) -> list[Mapping[str, Any]]:
        """The assistant's calls."""
        return [call for index in self.said for call in self.messages[index].get("tool_calls") or ()]

    def id_of(self, result: int) -> str | None:
        """Id of the call that a result answers; None if it names none."""
        return self.messages[result].get("tool_call_id") or None

    def is_over(self, there: int | None, *, last: bool, answered: bool) -> bool:
        """Returns whether no more results of its calls may come. `there` is as in `in_call_order`."""
        if there is None:
            return not last or self.follows
        return answered and bool(not last or self.others) and max(self.said + self.results + self.others) >= there

    def answers(self) -> tuple[dict[int, int], list[int]]:
        """Results by the index of their call, and the results that fit none. Matches ids first, then order."""
        calls, answers, without = self.calls, dict[int, int](), []
        for result in self.results:
            name = self.id_of(result)
            fits = [n for n, call in enumerate(calls) if n not in answers and call_id_of(call) == name]
            if fits and name is not None:
                answers[fits[0]] = result
            else:
                without.append(result)
        left = []
        for result in without:
            anyone = self.id_of(result) is None
            fits = [n for n, call in enumerate(calls) if n not in answers and (anyone or call_id_of(call) is None)]
            named = [n for n in fits if _name_of(calls[n]) == self.messages[result].get("name")]
            if fits:
                answers[(named or fits)[0]] = result
            else:
                left.append(result)
        return answers, left


def in_call_order(
    messages: Sequence[Mapping[str, Any]], *, there: int | None = None, unread: Collection[str] = ()
) -> list[int]:
    """Indices of messages in template order: each result directly behind its call, in the order of the calls.

    A result answers the call with its id. Where one of the two has no id, it answers the next call, preferably one of
    its tool. Ids are unique within one turn only.

    Args:
        messages: as `checked_messages` makes them.
        there: number of messages that are on a branch already, which the others extend: unanswered calls there were not
            run, results may belong to calls that are no longer known, and more results may follow. None where the
            messages are a whole conversation.
        unread: ids of calls that could not be parsed; their results stay in place.

    Raises:
        InvalidInput: a result without a waiting call, or a call without a result.
    """
    order: list[int] = []
    turns = _turns(messages)
    known = there is None
    for turn in turns:
        known = known or bool(turn.calls)
        answers, left = turn.answers()
        for result in left:
            name = turn.id_of(result)
            if name is not None and name not in unread and known and result >= (there or 0):
                raise InvalidInput(_unfit(turn, name))
        if turn.is_over(there, last=turn is turns[-1], answered=bool(answers)):
            _check_complete(turn, answers)
        moved = [answers[number] for number in sorted(answers)]
        order += [*turn.said, *moved, *sorted({*turn.results, *turn.others} - {*moved})]
    return order


def check_answered(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raises InvalidInput if the assistant is to speak while calls of its last message lack results."""
    turn = _turns(messages)[-1]
    answers, _ = turn.answers()
    if answers or not turn.follows:
        _check_complete(turn, answers)


def with_ids_of(
    messages: Sequence[Mapping[str, Any]], given: Mapping[str, Any], known: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Renames results' ids from those of the calls in `given` to those of the same calls in `known`, up to the next
    assistant message."""
    calls = zip(given.get("tool_calls") or (), known.get("tool_calls") or (), strict=False)
    ids = {call_id_of(one): call_id_of(other) for one, other in calls if call_id_of(one) and call_id_of(other)}
    turn = next((n for n, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    renamed = [
        {**message, "tool_call_id": ids[message["tool_call_id"]]} if message.get("tool_call_id") in ids else message
        for message in messages[:turn]
    ]
    return [*renamed, *messages[turn:]]


def has_plain_ids(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether all calls and results have ids as the strictest templates require: nine letters and digits."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    results = [message for message in messages if message["role"] == "tool"]
    ids = [call_id_of(call) or "" for call in calls] + [message.get("tool_call_id") or "" for message in results]
    return all(_PLAIN.fullmatch(name) for name in ids)


def with_plain_ids(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages with such ids, derived from their own, where results stand behind their calls."""
    changed: list[Mapping[str, Any]] = []
    waiting: list[str] = []
    for place, message in enumerate(messages):
        calls = message.get("tool_calls") or ()
        if calls:
            waiting = [_plain(call_id_of(call) or f"{place} {number}") for number, call in enumerate(calls)]
            named = [{**call, "id": name} for call, name in zip(calls, waiting, strict=True)]
            message = {**message, "tool_calls": named}
        elif message["role"] == "tool":
            given = message.get("tool_call_id")
            name = _plain(given) if given else waiting[0] if waiting else _plain(str(place))
            waiting = [each for each in waiting if each != name]
            message = {**message, "tool_call_id": name}
        changed.append(message)
    return changed


def _plain(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else call_id(0, name)


def call_id_of(call: Mapping[str, Any]) -> str | None:
    """The id of a call; None if it has none."""
    return call.get("id") or None


def _name_of(call: Mapping[str, Any]) -> str:
    name: str = call.get("function", call)["name"]
    return name


def _turns(messages: Sequence[Mapping[str, Any]]) -> list[_Turn]:
    turns = [_Turn(messages)]
    for index, message in enumerate(messages):
        if message["role"] == "assistant" and turns[-1].follows:
            turns.append(_Turn(messages))
        turn = turns[-1]
        places = {"assistant": turn.said, "tool": turn.results}.get(message["role"], turn.others)
        places.append(index)
    return turns


def _check_complete(turn: _Turn, answers: Collection[int]) -> None:
    for number, call in enumerate(turn.calls):
        if number not in answers:
            raise InvalidInput(_missing(call))


def _unfit(turn: _Turn, name: str) -> str:
    ids = [call_id_of(call) or "none" for call in turn.calls]
    if name in ids:
        return f"two results have the id {_quoted(name)}; give one for each call"
    made = f"the calls before it have the ids {', '.join(map(_quoted, ids))}" if ids else "no tool is called before it"
    return f"the result with the id {_quoted(name)} fits no call: {made}"


def _missing(call: Mapping[str, Any]) -> str:
    name = call_id_of(call)
    which = f"the call {_quoted(name)} of the tool" if name else "a call of the tool"
    return (
        f"{which} {_quoted(_name_of(call))} has no result; give a message of the role 'tool' for it, with its id as "
        "'tool_call_id'"
    )


def _quoted(text: str) -> str:
    return preview(text).removeprefix("str ")
