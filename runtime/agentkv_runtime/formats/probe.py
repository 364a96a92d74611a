"""Probes of a chat template: the text before a reply, and the spelling of calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentkv_runtime.errors import TokenizerError

if TYPE_CHECKING:
    from agentkv_runtime.text.tokenizer import Tokenizer

__all__ = ["CALLS", "Call", "definitions", "reply_headers", "reply_with_calls"]

Call = tuple[str, Mapping[str, Any]]
Message = dict[str, Any]

CALLS: tuple[Call, ...] = (
    ("get_weather", {"city": "Oslo", "days": 3}),
    ("get_time", {"zone": "Europe/Oslo"}),
)
"""Example calls that templates are rendered with."""

_SECONDS = 1.0  # a rendering may take: the event loop waits for it
_QUESTION = "How is the weather in Oslo?"
_RESULT = "It is sunny."
_ASKED: Message = {"role": "user", "content": _QUESTION}
_TYPES = {int: "integer", str: "string"}


def reply_headers(tokenizer: Tokenizer) -> list[str]:
    """Texts that the chat template writes before a reply: after a user's message and, if different, a tool's result.

    Empty without a template.
    """
    headers: list[str] = []
    result = {"role": "tool", "tool_call_id": "call00000", "name": CALLS[0][0], "content": _RESULT}
    called: list[Message] = [{"role": "assistant", "content": "", "tool_calls": _openai(CALLS[:1], dict)}, result]
    for messages, last in (([_ASKED], _QUESTION), ([_ASKED, *called], _RESULT)):
        header = _header(tokenizer, messages, last)
        if header and not any(header.endswith(other) for other in headers):
            headers.append(header)
    return headers


def _header(tokenizer: Tokenizer, messages: list[Message], last: str) -> str:
    try:
        opened = tokenizer.render(messages, definitions(CALLS[:1]), True, {}, _SECONDS).text
        closed = tokenizer.render(messages, definitions(CALLS[:1]), False, {}, _SECONDS).text
    except TokenizerError:
        return ""
    if opened.startswith(closed) and opened != closed:
        return opened[len(closed) :]
    # It writes nothing for a reply: what ends the message before it tells, from its last control token on.
    ended = opened.rpartition(last)[2]
    return ended[max(0, *(ended.rfind(token) for token in tokenizer.added_ids)) :] if ended else ""


def reply_with_calls(tokenizer: Tokenizer, calls: Sequence[Call]) -> Iterator[str]:
    """Yields the text of a reply with calls, once per form of calls in messages that templates may expect."""
    for spelled in (dict, json.dumps):
        for content in ("", None):
            reply = {"role": "assistant", "content": content, "tool_calls": _openai(calls, spelled)}
            try:
                text = tokenizer.render([_ASKED, reply], definitions(calls), False, {}, _SECONDS).text
            except TokenizerError:
                continue
            yield text.rpartition(_QUESTION)[2]


def _openai(calls: Sequence[Call], spelled: Any) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call{index:05}",  # nine letters and digits, as Mistral's templates demand
            "type": "function",
            "function": {"name": name, "arguments": spelled(arguments)},
        }
        for index, (name, arguments) in enumerate(calls)
    ]


def definitions(calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Tool definitions that fit these calls."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"Calls {name}.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        key: {"type": _TYPES[type(value)], "description": f"The {key}."}
                        for key, value in arguments.items()
                    },
                    "required": list(arguments),
                },
            },
        }
        for name, arguments in calls
    ]
