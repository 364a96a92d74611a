"""Chat messages and tool definitions, checked and copied before a template sees them."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from .._types.checks import checked_items
from .._types.checks import checked_text as checked_text
from .._types.errors import AgentKVError, InvalidInput
from .._types.log import log
from .._types.message import REASONING, Message, as_mapping
from .._types.show import preview

WriteCalls: TypeAlias = Callable[[str, Sequence[tuple[str, Mapping[str, Any]]]], str]
"""Writes a message's text and calls (name, arguments) as one text."""

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
    """Returns whether a prompt is a non-empty list of chat messages."""
    if not isinstance(prompt, list | tuple):
        return False
    # The first item, past methods of a subclass that might raise.
    first = list.__getitem__(prompt, slice(1)) if isinstance(prompt, list) else tuple.__getitem__(prompt, slice(1))
    return bool(first) and isinstance(first[0], Mapping | Message)


def checked_messages(messages: object) -> list[dict[str, Any]]:
    """Copies chat messages, each with a `role` and a `content`: text, text parts, or None beside tool calls.

    Calls whose arguments are not JSON, such as truncated ones, are left out with their results: they cannot have run,
    and a conversation can continue after them.

    Raises InvalidInput, also for values other than text, numbers, bools, None, lists and mappings.
    """
    if not is_messages(messages):
        raise InvalidInput(f"messages are {preview(messages)}, but they must be a list of at least one chat message")
    checked: list[dict[str, Any]] = []
    unread = _Unread()
    for index, message in enumerate(checked_items(messages, "messages")):  # type: ignore[arg-type]
        what = f"message {index}"
        if isinstance(message, Message):
            message = _given(message, what)
        if not isinstance(message, Mapping):
            raise InvalidInput(f"{what} is {preview(message)}, but it must be a mapping with a 'role' and a 'content'")
        copy = _copied(message, what)
        if "role" not in copy:
            raise InvalidInput(
                f"{what} has the keys {', '.join(map(repr, copy)) or '(none)'}, but it needs a 'role', such as 'user', "
                "and a 'content'"
            )
        if not isinstance(copy["role"], str) or not copy["role"]:
            raise InvalidInput(f"{what} has the role {preview(copy['role'])}, but it must be a str such as 'user'")
        # OpenAI's client dumps absent fields as None.
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
    """Copies tool definitions; None for None. Raises InvalidInput."""
    if tools is None:
        return None
    items = checked_items(tools, "tools") if isinstance(tools, list | tuple) else [tools]
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in items):
        raise InvalidInput(
            f"tools is {preview(tools)}, but it must be a list of tool definitions: mappings, such as "
            "`tool.definition` of a kv.Tool"
        )
    return [_with_parameters(_copied(tool, f"tool {index}"), f"tool {index}") for index, tool in enumerate(items)]


_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def _with_parameters(tool: dict[str, Any], what: str) -> dict[str, Any]:
    """The definition with a description and properties, which chat templates print, and otherwise in the order in which
    it was given. Raises InvalidInput without a name."""
    function = tool.get("function", tool)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidInput(
            f'{what} has no name; a definition is {{"type": "function", "function": {{"name": ..., "description": ..., '
            '"parameters": ...}}, as `tool.definition` of a kv.Tool is'
        )
    if "description" not in function:
        function = {"name": function["name"], "description": ""} | function
    parameters = function.get("parameters") or {}
    if isinstance(parameters, dict):
        lacks = {key: usual for key, usual in _NO_PARAMETERS.items() if key not in parameters}
        function = function | {"parameters": lacks | parameters}
    return {**tool, "function": function} if "function" in tool else function


def checked_template(template: object, known: bool) -> dict[str, Any]:
    """Copies the variables of a chat template. Raises InvalidInput, also if the prompt is no conversation (`known`
    False)."""
    if template is None:
        return {}
    if not known:
        raise InvalidInput("template has variables for the chat template; give the prompt as chat messages")
    if not isinstance(template, Mapping):
        raise InvalidInput(f"template is {preview(template)}, but it must be a mapping of variables")
    copy: dict[str, Any] = _copied(template, "template", finite=False)  # a template may use infinity
    for name in _OWN_VARIABLES & copy.keys():
        raise InvalidInput(f"template has {name!r}, which is not a variable of the caller's; {_OWN_VARIABLES_ARE}")
    return copy


def text_of(message: Mapping[str, Any]) -> str:
    """Text content of a checked message; parts are joined."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def characters_in(value: object) -> int:
    """Number of characters of text in messages or tools."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(characters_in, value)) + sum(map(characters_in, value.values()))
    return sum(map(characters_in, value)) if isinstance(value, list) else 0


def with_joined_parts(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages with lists of text parts joined to one text."""
    return [
        {**message, "content": text_of(message)} if isinstance(message.get("content"), list) else message
        for message in messages
    ]


def with_text_parts(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages with each text content wrapped in one text part."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message.get("content"), str)
        else message
        for message in messages
    ]


def with_empty_content(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages with None contents replaced by an empty text."""
    return [{**message, "content": ""} if message.get("content") is None else message for message in messages]


def with_reasoning_as(name: str, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message with `reasoning_content` renamed."""
    if "reasoning_content" not in message:
        return message
    others = {key: value for key, value in message.items() if key != "reasoning_content"}
    return {name: message["reasoning_content"], **others}


def with_calls_as_text(message: Mapping[str, Any], write: WriteCalls) -> Mapping[str, Any]:
    """A message with its calls written into its text."""
    if not message.get("tool_calls"):
        return message
    functions = [call.get("function", call) for call in message["tool_calls"]]
    calls = [(function["name"], function.get("arguments") or {}) for function in functions]
    others = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**others, "content": write(text_of(message), calls)}


def with_result_as_words(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool's result as a user's message; any other message unchanged."""
    if message["role"] != "tool":
        return message
    of = f" of {message['name']}" if message.get("name") else ""
    return {"role": "user", "content": f"Result{of}:\n{text_of(message)}"}


class _Unread:
    """Calls of the assistant's last message whose arguments could not be parsed."""

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
        """Returns whether a message is the result of a call that was left out."""
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
            raise InvalidInput(f"{what} has the {key} {preview(message[key])}, but it must be a str")


def _calls(message: Mapping[str, Any], what: str) -> list[Any]:
    calls = message["tool_calls"]
    if not isinstance(calls, list):
        raise InvalidInput(f"{what} has the tool_calls {preview(calls)}, but they must be a list of calls")
    return calls


def _checked_call(call: Any, what: str) -> dict[str, Any]:
    """Checks a call. Its arguments become a mapping, as templates want them, or None if they are not JSON (OpenAI's are
    JSON text)."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise InvalidInput(f"{what} is {preview(call)}, but it must be {_CALL}")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise InvalidInput(
            f"{what} has the name {preview(function.get('name'))}, but it must be the str of a tool's name"
        )
    if not isinstance(call.get("id") or "", str):
        raise InvalidInput(f"{what} has the id {preview(call['id'])}, but it must be a str")
    function = {**function, "arguments": _arguments(function.get("arguments"), what)}
    return {**call, "function": function} if "function" in call else function


def _arguments(given: Any, what: str) -> dict[str, Any] | None:
    """Arguments as a mapping, as templates want them; None if they are not JSON. Accepts what histories contain:
    nothing for no arguments, doubly encoded JSON, or one value without its name."""
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
                named = f"of type {kind!r}" if isinstance(kind, str) and kind != "text" else preview(part)
                raise InvalidInput(
                    f"{what} has a part {named}, but the model takes text: parts are {{'type': 'text', 'text': ...}}"
                )
    else:
        raise InvalidInput(
            f"{what} has the content {preview(content)}, but it must be a str or a list of text parts; write what is "
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
                    raise InvalidInput(f"{what} has the key {preview(key)}, but keys must be str")
                copy[checked_text(key, what)] = _copied(item, what, depth + 1, finite=finite)
            return copy
    except AgentKVError:
        raise
    except Exception as error:
        raise InvalidInput(f"{what} cannot be read: {type(error).__name__}: {error}") from error
    raise InvalidInput(f"{what} holds {preview(value)}, but it may hold text, numbers, bools, None, lists and mappings")
