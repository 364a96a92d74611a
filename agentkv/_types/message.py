"""Messages of a conversation, as users read them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

REASONING = ("reasoning_content", "thinking", "reasoning")  # what templates call it: most families, gpt-oss, others
_NUMBERED = re.compile("call([0-9]{5,9})")  # an id that `call_id` counts


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call in a message.

    Attributes:
        name: name of the tool.
        arguments: by name; None where they could not be parsed, with the reason in `error`.
        id: the `call_id` of the tool's message that answers it; None where the caller gave none.
        error: why the call must not run, such as a truncated one; None for a valid call.
    """

    name: str
    arguments: Mapping[str, Any] | None
    id: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message of `Branch.messages`. Prompts take it as well as a mapping.

    Attributes:
        role: "system", "user", "assistant", "tool", or another one that the chat template names.
        content: its text.
        reasoning: the model's reasoning before its answer; None where there is none.
        calls: the tool calls.
        name: name of the tool that a tool's message comes from, or of the speaker.
        call_id: id of the call that a tool's message answers.
        start: the message is `branch.tokens[start:end]`: for a generated one the generated tokens, without the token
            that ended it; for others, the tokens that the template rendered. Messages that the template does not tell
            apart share one span.
        end: see `start`.
    """

    role: str
    content: str
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    call_id: str | None = None
    start: int = 0
    end: int = 0

    def __str__(self) -> str:
        return self.content

    def as_openai(self) -> dict[str, Any]:
        """The message in the form of OpenAI's API, as a dict that is JSON; `extend` and `Context.branch` take it back.

        Arguments of calls are JSON texts there. Calls that cannot be read are left out.
        """
        message = as_mapping(replace(self, calls=tuple(call for call in self.calls if call.error is None)))
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        return message


def call_id(number: int, of: str = "") -> str:
    """The id of a conversation's call, counted from 0; with `of`, a hash of it and the number, which differs from the
    ids in any other conversation. Nine letters and digits, as the strictest templates require."""
    if not of:
        return f"call{number:05d}"
    digest = hashlib.blake2b(f"{of} {number}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return base64.b32hexencode(digest).decode().lower()[:9]


def calls_before(messages: Iterable[Mapping[str, Any]]) -> int:
    """Number of the first call after these messages, such that its id is none of theirs."""
    ids = [call.get("id") for message in messages for call in message.get("tool_calls") or ()]
    numbers = [int(found[1]) for name in ids if (found := _NUMBERED.fullmatch(name or ""))]
    return max([len(ids), *(number + 1 for number in numbers)])


def message_of(message: Mapping[str, Any], start: int, end: int) -> Message:
    """Converts a chat message, as templates take it, to a Message."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    return Message(
        role=message["role"],
        content=content or "",
        reasoning=_reasoning_of(message),
        calls=tuple(map(_call_of, message.get("tool_calls") or ())),
        name=message.get("name"),
        call_id=message.get("tool_call_id"),
        start=start,
        end=end,
    )


def as_mapping(message: Message) -> dict[str, Any]:
    """Converts a Message to a chat message, as templates take it."""
    content = message.content or (None if message.calls else "")
    mapping: dict[str, Any] = {"role": message.role, "content": content}
    if message.reasoning is not None:
        mapping["reasoning_content"] = message.reasoning
    if message.calls:
        mapping["tool_calls"] = [_as_tool_call(call) for call in message.calls]
    if message.name is not None:
        mapping["name"] = message.name
    if message.call_id is not None:
        mapping["tool_call_id"] = message.call_id
    return mapping


def _reasoning_of(message: Mapping[str, Any]) -> str | None:
    named = (message.get(name) for name in REASONING)
    return next((value for value in named if isinstance(value, str)), None)


def _call_of(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function", call)
    return ToolCall(function["name"], function.get("arguments") or {}, call.get("id"))


def _as_tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments or {}}
    return {"type": "function", "function": function} | ({} if call.id is None else {"id": call.id})
