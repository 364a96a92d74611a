"""Items: what goes into a response and comes out of it, and the messages that they are."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from ..body import Body
from ..ignored import Ignored
from ..leniency import checked
from ..refused import Refused

Status = Literal["in_progress", "completed", "incomplete"]


class TextPart(Body):
    """A part of a message, or of what a tool gave back; those of our own output come back as they were."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


def _parts(content: object) -> object:
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content


Content = Annotated[list[TextPart], BeforeValidator(_parts)]


class MessageItem(Body):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: str | None = None
    status: Status | None = None
    phase: str | None = None


def _json(arguments: object) -> object:
    return json.dumps(arguments) if isinstance(arguments, dict | list) else arguments


class CallItem(Body):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: Annotated[str, BeforeValidator(_json)] = ""
    id: str | None = None
    status: Status | None = None


class OutputItem(Body):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content
    id: str | None = None
    status: Status | None = None


class ThoughtPart(Body):
    """A part of what the model thought."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Body):
    """What the model thought before it answered."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[ThoughtPart] | None = None
    content: list[ThoughtPart] | None = None
    status: Status | None = None


_KINDS: Mapping[str, tuple[type[Body], str]] = {  # and how their ids begin
    "message": (MessageItem, "msg"),
    "function_call": (CallItem, "fc"),
    "function_call_output": (OutputItem, "fco"),
    "reasoning": (ReasoningItem, "rs"),
}


def new_id(kind: str) -> str:
    """An id that nobody guesses."""
    return f"{kind}_{secrets.token_hex(16)}"


def qualified(namespace: str | None, name: str) -> str:
    """The name by which the model calls a function."""
    return name if namespace is None else f"{namespace.rstrip('_')}__{name}"


def read_items(given: Sequence[Mapping[str, Any]], ignored: Ignored) -> list[dict[str, Any]]:
    """Items as they were given, each with an id, and content as parts. Raises Refused for what is none."""
    items = []
    for index, item in enumerate(given):
        where = f"input.{index}"
        told = item.get("type") or "message"
        if not isinstance(told, str) or told not in _KINDS:
            known = ", ".join(_KINDS)
            raise Refused("invalid", f"{where}.type must be one of {known}", "unsupported_value", f"{where}.type")
        kind, prefix = _KINDS[told]
        read = checked(kind, {key: value for key, value in item.items() if value is not None}, ignored, where)
        made = {"id": new_id(prefix), "type": told, "status": "completed"}
        items.append(made | read.model_dump(exclude_none=True))
    return items


def messages_of(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages that items are: what the model thought, said and called in one go is one message."""
    messages: list[dict[str, Any]] = []
    open_: dict[str, Any] | None = None  # the assistant's message that more items may belong to
    for item in items:
        match item["type"]:
            case "reasoning":
                thought = _text(item.get("content") or item.get("summary") or ())
                open_ = {"role": "assistant", "content": None, "reasoning_content": thought}
                messages.append(open_)
            case "message" if item["role"] == "assistant":
                if open_ is None or open_["content"] is not None or "tool_calls" in open_:
                    open_ = {"role": "assistant"}
                    messages.append(open_)
                open_["content"] = _text(item["content"])
            case "function_call":
                if open_ is None:
                    open_ = {"role": "assistant", "content": None}
                    messages.append(open_)
                name = qualified(item.get("namespace"), item["name"])
                function = {"name": name, "arguments": item["arguments"]}
                call = {"type": "function", "id": item["call_id"], "function": function}
                open_.setdefault("tool_calls", []).append(call)
            case "function_call_output":
                open_ = None
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": _text(item["output"])})
            case _:
                open_ = None
                role = "system" if item["role"] == "developer" else item["role"]
                messages.append({"role": role, "content": _text(item["content"])})
    return messages


def _text(parts: Sequence[Mapping[str, Any]]) -> str:
    return "".join(part["text"] for part in parts)
