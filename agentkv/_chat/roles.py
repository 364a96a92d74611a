"""Roles that a chat template takes, and the conversion of messages in other roles to a user's words.

A template is probed once with each kind of message, without tools and with them; a new kind is a row of `_KINDS`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import groupby, pairwise
from typing import Any

from .._types.errors import InvalidInput
from .._types.show import preview
from .messages import WriteCalls, text_of, with_calls_as_text, with_result_as_words

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None
Try = Callable[[Messages, Tools, bool, float], str]
"""Renders messages with a template, "" if it refuses them; `bool`: whether the assistant speaks next."""

GIVES_INSTRUCTIONS = ("system", "developer")
ROLES = (*GIVES_INSTRUCTIONS, "user", "assistant", "tool")
"""Roles that messages have for any template; others only for one that names them."""
_ELSEWHERE = {"human": "user", "ai": "assistant", "bot": "assistant", "gpt": "assistant", "model": "assistant"}
_ELSEWHERE |= {"function": "tool"}
"""Roles of other data sets and libraries."""
_ONE, _OTHER = (secrets.token_hex(8) for _ in range(2))  # words that no template has of its own
_USER, _ANSWER = {"role": "user", "content": "."}, {"role": "assistant", "content": "."}


def _called(content: str | None, name: str, result: str) -> Messages:
    function = {"name": name, "arguments": {"a": 1}}
    call = {"id": "call00000", "type": "function", "function": function}
    calling = {"role": "assistant", "content": content, "tool_calls": [call]}
    return [_USER, calling, {"role": "tool", "name": name, "tool_call_id": "call00000", "content": result}]


_KINDS: Mapping[str, Sequence[Messages]] = {
    "developer": [[{"role": "developer", "content": _ONE}, _USER]],
    "system": [[{"role": "system", "content": _ONE}, _USER]],
    "later system": [[_USER, _ANSWER, {"role": "system", "content": _ONE}, _USER]],
    "calls": [_called(None, _ONE, "."), _called("", _ONE, ".")],
    "results": [
        _called(None, "f", _ONE),
        _called("", "f", _ONE),
        [_USER, _ANSWER, {"role": "tool", "name": "f", "content": _ONE}],
    ],
    "questions behind results": [
        [*_called(content, "f", _ONE), {"role": "user", "content": _OTHER}] for content in (None, "")
    ],
    "questions in a row": [[{"role": "user", "content": _ONE}, {"role": "user", "content": _OTHER}]],
    "answers in a row": [
        [_USER, {"role": "assistant", "content": _ONE}, {"role": "assistant", "content": _OTHER}, _USER]
    ],
}
"""Probes by kind of message: a template takes a kind if it writes the words of one of its lists."""


def check_roles(messages: Messages, named: Callable[[str], bool]) -> None:
    """Raises InvalidInput for a role that is none of `ROLES` and that the template does not name.

    Many templates write whatever role they are given, and the model has seen none of these.
    """
    for message in messages:
        role = message["role"]
        if role not in ROLES and not named(role):
            usual = _ELSEWHERE.get(role.lower()) or next(iter(get_close_matches(role.lower(), ROLES, 1)), None)
            hint = f"did you mean {usual!r}? " if usual else ""
            raise InvalidInput(
                f"a message has the role {preview(role)}, which the chat template does not name; {hint}roles are "
                f"{', '.join(map(repr, ROLES))}, and those that the model's template names"
            )


class Roles:
    """Roles of one chat template, found with the renderer `tried`."""

    def __init__(self, tried: Try, write_calls: WriteCalls) -> None:
        self._tried = tried
        self._write_calls = write_calls
        self._found: dict[tuple[str, bool], bool] = {}
        self._way: dict[bool, int] = {}  # the way tools are passed, by whether there are some

    def takes(self, kind: str, tools: Tools, seconds: float) -> bool:
        """Returns whether the template renders messages of a kind. True for all kinds if it does not even render a
        user's."""
        key = kind, bool(tools)
        if key not in self._found:
            self._found[key] = any(
                all(word in made for word in (_ONE, _OTHER) if _has(messages, word))
                for messages in _KINDS[kind]
                if (made := self._tried(messages, tools, messages[-1]["role"] != "assistant", seconds))
            ) or not self._tried([_USER], tools, True, seconds)
        return self._found[key]

    def takes_alone(self, tools: Tools, seconds: float) -> bool:
        """Returns whether the template renders a system prompt and tools before any question, as a prefix of the
        whole."""
        key = "alone", bool(tools)
        if key not in self._found:
            prompt = {"role": "system", "content": _ONE}
            alone = self._tried([prompt], tools, False, seconds)
            whole = self._tried([prompt, _USER], tools, False, seconds)
            names = [str(tool.get("function", tool).get("name")) for tool in tools or ()]
            told = all(name in alone for name in names if name in whole)
            self._found[key] = _ONE in alone and whole.startswith(alone) and told
        return self._found[key]

    def tools(self, tools: Tools, seconds: float) -> Tools:
        """Tools in the form that the template takes: as given, with descriptions on all properties, or None if it fails
        on any; without tools, None or an empty list."""
        ways: Sequence[Callable[[], Tools]] = (
            [lambda: tools, lambda: [_described(tool) for tool in tools], lambda: None]
            if tools
            else [lambda: None, list]
        )
        if bool(tools) not in self._way:
            works = (i for i, way in enumerate(ways) if self._tried([_USER], way(), True, seconds))
            self._way[bool(tools)] = next(works, 0)
        return ways[self._way[bool(tools)]]()

    def fitted(self, messages: Messages, tools: Tools, seconds: float) -> Messages:
        """Messages of the same meaning in roles, and an order, that the template takes."""
        takes = partial(self.takes, tools=tools, seconds=seconds)
        roles = [message["role"] for message in messages]
        if "developer" in roles and not (takes("developer") and takes("system")):
            messages = [_renamed(message, "developer", "system") for message in messages]
        if any(message.get("tool_calls") for message in messages) and not takes("calls"):
            messages = [with_calls_as_text(message, self._write_calls) for message in messages]
        if "tool" in roles and not takes("results"):
            messages = [with_result_as_words(message) for message in messages]
        messages = self._without_systems(messages, takes)
        if _asks_behind_results(messages) and not takes("questions behind results"):
            messages = _with_results(messages)
        rows = [("user", "questions in a row"), ("assistant", "answers in a row")]
        for role, kind in rows:
            if _in_a_row(messages, role) and not takes(kind):
                messages = _joined(messages, role)
        return messages

    def _without_systems(self, messages: Messages, takes: Callable[[str], bool]) -> Messages:
        """Merges instructions at the front into one message, or into the first question; later ones become user
        messages."""
        front = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
        first, rest = messages[:front], messages[front:]
        later = any(message["role"] == "system" for message in rest)
        if (front > 1 or later) and not takes("later system"):
            first = _joined(first, "system")
            rest = [_renamed(message, "system", "user") for message in rest]
        if not first or takes("system"):
            return [*first, *rest]
        words = [{**message, "role": "user"} for message in first if text_of(message)]
        asked = next((i for i, message in enumerate(rest) if message["role"] == "user"), None)
        if asked is None:
            return [*words, *rest]
        return [*rest[:asked], *_joined([*words, rest[asked]], "user"), *rest[asked + 1 :]]


def _described(value: Any) -> Any:
    """A tool definition in which each property has a description, an empty one if need be."""
    if not isinstance(value, Mapping):
        return value
    described = {key: _described(item) for key, item in value.items()}
    if isinstance(properties := described.get("properties"), Mapping):
        named = {
            name: {"description": "", **each} if isinstance(each, Mapping) else each
            for name, each in properties.items()
        }
        described["properties"] = named
    return described


def _has(messages: Messages, word: str) -> bool:
    return word in json.dumps(messages)


def _renamed(message: Mapping[str, Any], role: str, other: str) -> Mapping[str, Any]:
    return {**message, "role": other} if message["role"] == role else message


def _in_a_row(messages: Messages, role: str) -> bool:
    return any(_is_plain(one, role) and _is_plain(other, role) for one, other in pairwise(messages))


def _joined(messages: Messages, role: str) -> Messages:
    """Merges consecutive messages of a role into one, a paragraph each."""
    joined: list[Mapping[str, Any]] = []
    for is_one, row in groupby(messages, lambda message: _is_plain(message, role)):
        each = list(row)
        if is_one and len(each) > 1:
            each = [{**each[-1], "content": "\n\n".join(filter(None, map(text_of, each)))}]
        joined += each
    return joined


def _asks_behind_results(messages: Messages) -> bool:
    return any(one["role"] == "tool" and other["role"] == "user" for one, other in pairwise(messages))


def _with_results(messages: Messages) -> Messages:
    """Merges a user's message after a result into that result, as a paragraph."""
    folded: list[Mapping[str, Any]] = []
    for message in messages:
        if message["role"] == "user" and folded and folded[-1]["role"] == "tool":
            result = folded.pop()
            message = {**result, "content": "\n\n".join(filter(None, map(text_of, (result, message))))}
        folded.append(message)
    return folded


def _is_plain(message: Mapping[str, Any], role: str) -> bool:
    return message["role"] == role and not message.get("tool_calls")
