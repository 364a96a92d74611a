"""Chat messages and tool definitions, checked and copied before a template sees them."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from .._types.checks import items_of
from .._types.checks import text_of as checked_text
from .._types.errors import AgentKVError, InvalidInput
from .._types.log import log
from .._types.message import REASONING, Message, as_mapping
from .._types.show import shown

WriteCalls: TypeAlias = Callable[[str, Sequence[tuple[str, Mapping[str, Any]]]], str]
"""A message of text and calls, as one text."""

_DEEPEST = 64
_MOST_BITS = 4096  # of an integer: Python writes none of 14,285 or more
_CALL = "{'type': 'function', 'function': {'name': ..., 'arguments': ...}}"
_REFUSED = {
    "function_call": "give calls as 'tool_calls'",
    "audio": "give its transcript as content",
    "refusal": "give it as content",
}
_OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt"})
_OWN_VARIABLES_ARE = "messages are the prompt, tools have an argument, the assistant's turn is opened where it is due"


def is_messages(prompt: object) -> bool:
    """Is it a non-empty list of chat messages?"""
    if not isinstance(prompt, list | tuple):
        return False
    # The first item, past methods of a subclass that might raise.
    first = list.__getitem__(prompt, slice(1)) if isinstance(prompt, list) else tuple.__getitem__(prompt, slice(1))
    return bool(first) and isinstance(first[0], Mapping | Message)


def checked_messages(messages: object) -> list[dict[str, Any]]:
    """A copy of chat messages, each with a `role` and a `content`: text, text parts, or None beside tool calls.

    Calls whose arguments are no JSON, as those that were cut short, are left out with their results: nobody has run
    them as they stand, and a conversation goes on after them.

    Raises InvalidInput, also for anything that is not text, numbers, lists and mappings.
    """
    if not is_messages(messages):
        raise InvalidInput(f"messages are {shown(messages)}, but they must be a list of at least one chat message")
    checked: list[dict[str, Any]] = []
    unread = _Unread()
    for index, message in enumerate(items_of(messages, "messages")):  # type: ignore[arg-type]
        what = f"message {index}"
        if isinstance(message, Message):
            message = _given(message, what)
        if not isinstance(message, Mapping):
            raise InvalidInput(f"{what} is {shown(message)}, but it must be a mapping with a 'role' and a 'content'")
        copy = _copied(message, what)
        if not isinstance(copy.get("role"), str) or not copy["role"]:
            raise InvalidInput(f"{what} has the role {shown(copy.get('role'))}, but it must be a str such as 'user'")
        # What OpenAI's client writes of a message says None where there is nothing.
        copy = {key: value for key, value in copy.items() if value is not None or key == "content"}
        _check_names(copy, what)
        if "tool_calls" in copy:
            calls = [_checked_call(call, f"{what}, call {number},") for number, call in enumerate(_calls(copy, what))]
            copy = unread.left_out(copy, calls)
        _check_content(copy, what)
        if not unread.has_result(copy):
            checked.append(copy)
    return checked


def checked_tools(tools: object) -> list[dict[str, Any]] | None:
    """A copy of tool definitions; None where there are none. Raises InvalidInput."""
    if tools is None:
        return None
    items = items_of(tools, "tools") if isinstance(tools, list | tuple) else [tools]
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in items):
        raise InvalidInput(
            f"tools is {shown(tools)}, but it must be a list of tool definitions: mappings, such as "
            "`tool.definition` of a kv.Tool"
        )
    return [_copied(tool, f"tool {index}") for index, tool in enumerate(items)]


def checked_template(template: object, known: bool) -> dict[str, Any]:
    """A copy of variables for the chat template. Raises InvalidInput; also where there is no conversation to spell."""
    if template is None:
        return {}
    if not known:
        raise InvalidInput("template has variables for the chat template; give the prompt as chat messages")
    if not isinstance(template, Mapping):
        raise InvalidInput(f"template is {shown(template)}, but it must be a mapping of variables")
    copy: dict[str, Any] = _copied(template, "template", finite=False)  # a template may well ask for infinity
    for name in _OWN_VARIABLES & copy.keys():
        raise InvalidInput(f"template has {name!r}, which is not a variable of the caller's; {_OWN_VARIABLES_ARE}")
    return copy


def text_of(message: Mapping[str, Any]) -> str:
    """The content of a checked message."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def characters_in(value: object) -> int:
    """How much text messages or tools have."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(characters_in, value)) + sum(map(characters_in, value.values()))
    return sum(map(characters_in, value)) if isinstance(value, list) else 0


def with_joined_parts(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages whose content is one text, where it was a list of text parts."""
    return [
        {**message, "content": text_of(message)} if isinstance(message.get("content"), list) else message
        for message in messages
    ]


def with_text_parts(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages whose content is one text part, where it was a text."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message.get("content"), str)
        else message
        for message in messages
    ]


def with_empty_content(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages whose content is an empty text, where it was None."""
    return [{**message, "content": ""} if message.get("content") is None else message for message in messages]


def with_reasoning_as(name: str, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message whose `reasoning_content` has another name."""
    if "reasoning_content" not in message:
        return message
    others = {key: value for key, value in message.items() if key != "reasoning_content"}
    return {name: message["reasoning_content"], **others}


def with_calls_as_text(message: Mapping[str, Any], write: WriteCalls) -> Mapping[str, Any]:
    """A message whose calls are part of its text."""
    if not message.get("tool_calls"):
        return message
    functions = [call.get("function", call) for call in message["tool_calls"]]
    calls = [(function["name"], function.get("arguments") or {}) for function in functions]
    others = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**others, "content": write(text_of(message), calls)}


def with_result_as_words(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result of a tool, as a user tells it; any other message as it is."""
    if message["role"] != "tool":
        return message
    of = f" of {message['name']}" if message.get("name") else ""
    return {"role": "user", "content": f"Result{of}:\n{text_of(message)}"}


class _Unread:
    """The calls of the assistant's last message that could not be read."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._all = False

    def left_out(self, message: dict[str, Any], calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """A message without those of its calls whose arguments are None."""
        unread = [call for call in calls if call.get("function", call)["arguments"] is None]
        read = [call for call in calls if call.get("function", call)["arguments"] is not None]
        self._ids = {call["id"] for call in unread if call.get("id")}
        self._all = bool(unread) and not read
        if unread:
            _say_left_out()
        if self._all:
            return {key: value for key, value in message.items() if key != "tool_calls"} | {
                "content": "" if message.get("content") is None else message["content"]
            }
        return {**message, "tool_calls": read}

    def has_result(self, message: Mapping[str, Any]) -> bool:
        """Does a message answer one of them?"""
        if message["role"] != "tool":
            self._all = self._all and message["role"] == "assistant"
            return False
        name = message.get("tool_call_id")
        return name in self._ids if name else self._all


@functools.cache  # once
def _say_left_out() -> None:
    log.warning("calls whose arguments are no JSON, such as those that were cut short, are left out of prompts")


def _given(message: Message, what: str) -> dict[str, Any]:
    try:
        mapping = as_mapping(message)
        for call, given in zip(message.calls, mapping.get("tool_calls", ()), strict=True):
            if call.error is not None:
                given["function"]["arguments"] = "cut short"  # no JSON: it is left out
    except Exception as error:  # its fields may be anything
        raise InvalidInput(f"{what} cannot be read: {type(error).__name__}: {error}") from error
    return mapping


def _check_names(message: Mapping[str, Any], what: str) -> None:
    for key, advice in _REFUSED.items():
        if key in message:
            raise InvalidInput(f"{what} has {key!r}, which no chat template here knows; {advice}")
    for key in ("name", "tool_call_id", *REASONING):
        if not isinstance(message.get(key, ""), str):
            raise InvalidInput(f"{what} has the {key} {shown(message[key])}, but it must be a str")


def _calls(message: Mapping[str, Any], what: str) -> list[Any]:
    calls = message["tool_calls"]
    if not isinstance(calls, list):
        raise InvalidInput(f"{what} has the tool_calls {shown(calls)}, but they must be a list of calls")
    return calls


def _checked_call(call: Any, what: str) -> dict[str, Any]:
    """A call whose arguments are a mapping, as templates want them, or None where they cannot be read; OpenAI's are
    JSON."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise InvalidInput(f"{what} is {shown(call)}, but it must be {_CALL}")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise InvalidInput(
            f"{what} has the name {shown(function.get('name'))}, but it must be the str of a tool's name"
        )
    if not isinstance(call.get("id") or "", str):
        raise InvalidInput(f"{what} has the id {shown(call['id'])}, but it must be a str")
    function = {**function, "arguments": _arguments(function.get("arguments"), what)}
    return {**call, "function": function} if "function" in call else function


def _arguments(given: Any, what: str) -> dict[str, Any] | None:
    """Arguments as templates want them, which go through their names; None for what is no JSON. Makers of histories
    write nothing for none, encode them twice, or give one value without its name."""
    if isinstance(given, str) and given.strip():
        try:
            given = _copied(json.loads(given), what)
        except (ValueError, RecursionError):
            return None
        if isinstance(given, str):
            with suppress(ValueError, RecursionError):  # it is a text
                given = _copied(json.loads(given), what)
    if given is None or (isinstance(given, str) and not given.strip()):
        return {}
    return given if isinstance(given, dict) else {"value": given}


def _check_content(message: dict[str, Any], what: str) -> None:
    content = message.get("content")
    if isinstance(content, str):
        return
    if content is None:
        if not message.get("tool_calls") and not any(name in message for name in REASONING):
            raise InvalidInput(f"{what} has no content; give it text, which may be empty (only tool calls go without)")
        message["content"] = None if message.get("tool_calls") else ""
    elif isinstance(content, list):
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text" or not isinstance(part.get("text"), str):
                named = f"of type {kind!r}" if isinstance(kind, str) and kind != "text" else shown(part)
                raise InvalidInput(
                    f"{what} has a part {named}, but the model takes text: parts are {{'type': 'text', 'text': ...}}"
                )
    else:
        raise InvalidInput(
            f"{what} has the content {shown(content)}, but it must be a str or a list of text parts; write what is "
            "neither as text, with json.dumps for example"
        )


def _copied(value: Any, what: str, depth: int = 0, *, finite: bool = True) -> Any:
    if isinstance(value, str):
        return checked_text(value, what)
    if value is None or type(value) in (bool, int, float):
        if type(value) is int and value.bit_length() > _MOST_BITS:
            raise InvalidInput(f"{what} has an integer of {value.bit_length()} bits; at most {_MOST_BITS} are allowed")
        if finite and type(value) is float and not math.isfinite(value):
            raise InvalidInput(
                f"{what} has the number {value}, which no JSON can hold; write it as text, or leave it out"
            )
        return value
    if depth == _DEEPEST:
        raise InvalidInput(f"{what} is nested more than {_DEEPEST} levels deep; flatten it")
    try:
        if isinstance(value, (list, tuple)):
            return [_copied(item, what, depth + 1, finite=finite) for item in value]
        if isinstance(value, (dict, Mapping)):  # most are a dict, which is quickly seen
            copy = {}
            for key, item in value.items():
                if not isinstance(key, str):
                    raise InvalidInput(f"{what} has the key {shown(key)}, but keys must be str")
                copy[checked_text(key, what)] = _copied(item, what, depth + 1, finite=finite)
            return copy
    except AgentKVError:
        raise
    except Exception as error:
        raise InvalidInput(f"{what} cannot be read: {type(error).__name__}: {error}") from error
    raise InvalidInput(f"{what} holds {shown(value)}, but it may hold text, numbers, bools, None, lists and mappings")
