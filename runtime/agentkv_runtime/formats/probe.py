"""How a chat template writes a reply: what it puts before it, and how it spells calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentkv_runtime.errors import TokenizerError

if TYPE_CHECKING:
    from agentkv_runtime.tokenizer import Tokenizer

__all__ = ["CALLS", "Call", "definitions", "reply_header", "reply_with_calls"]

Call = tuple[str, Mapping[str, Any]]

CALLS: tuple[Call, ...] = (
    ("get_weather", {"city": "Oslo", "days": 3}),
    ("get_time", {"zone": "Europe/Oslo"}),
)
"""What is asked for."""

_SECONDS = 10.0
_QUESTION = "How is the weather in Oslo?"
_ASKED = {"role": "user", "content": _QUESTION}
_TYPES = {int: "integer", str: "string"}


def reply_header(tokenizer: Tokenizer) -> str:
    """What the chat template writes after a user's message to open the reply; empty without a template."""
    try:
        opened = tokenizer.render([_ASKED], None, True, {}, _SECONDS).text
        closed = tokenizer.render([_ASKED], None, False, {}, _SECONDS).text
    except TokenizerError:
        return ""
    header = opened[len(closed) :] if opened.startswith(closed) else ""
    return header or opened.rpartition(_QUESTION)[2]


def reply_with_calls(tokenizer: Tokenizer, calls: Sequence[Call]) -> Iterator[str]:
    """The text of a reply that makes calls, in each of the ways that templates may expect to be given them."""
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
    """Tools that are called so."""
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
