"""Items of a response: their shapes in requests, their messages, and the events of new ones."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

from agentkv_runtime.formats.parsed import ArgumentsDelta, CallClosed, CallOpened, Delta, ReasoningDelta, TextDelta
from openai.types.responses import (
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionCallArgumentsDoneEvent,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseReasoningTextDeltaEvent,
    ResponseReasoningTextDoneEvent,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
)
from pydantic import BaseModel, BeforeValidator

from ..http.body import Body
from ..http.errors import ApiError
from ..http.ignored import Ignored
from ..http.leniency import checked
from ..reply import ReplyChunk, TokenLogprob
from .logprobs import logprobs_of

Status = Literal["in_progress", "completed", "incomplete"]


class TextPart(Body):
    """A text part of a message or of a tool's output. Parts of the server's own output are accepted unchanged."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


def _parts(content: object) -> object:
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content


Content = Annotated[list[TextPart], BeforeValidator(_parts)]


class MessageItem(Body):
    """A message of the conversation."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: str | None = None
    status: Status | None = None
    phase: str | None = None


def _json(arguments: object) -> object:
    return json.dumps(arguments) if isinstance(arguments, dict | list) else arguments


class CallItem(Body):
    """A tool call of the model."""

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: Annotated[str, BeforeValidator(_json)] = ""
    id: str | None = None
    status: Status | None = None


class OutputItem(Body):
    """Result of a tool call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content
    id: str | None = None
    status: Status | None = None


class ThoughtPart(Body):
    """A part of the model's reasoning."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Body):
    """Reasoning of the model before its answer."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[ThoughtPart] | None = None
    content: list[ThoughtPart] | None = None
    status: Status | None = None


_KINDS: Mapping[str, tuple[type[Body], str]] = {  # with the prefix of their ids
    "message": (MessageItem, "msg"),
    "function_call": (CallItem, "fc"),
    "function_call_output": (OutputItem, "fco"),
    "reasoning": (ReasoningItem, "rs"),
}


def new_id(kind: str) -> str:
    """A new, random id."""
    return f"{kind}_{secrets.token_hex(16)}"


def qualified(namespace: str | None, name: str) -> str:
    """Name by which the model calls a function: its namespace and its own name."""
    return name if namespace is None else f"{namespace.rstrip('_')}__{name}"


def read_items(given: Sequence[Mapping[str, Any]], ignored: Ignored) -> list[dict[str, Any]]:
    """Validates items; the returned ones have an id each, and content as parts. Raises ApiError for anything else."""
    items = []
    for index, item in enumerate(given):
        where = f"input.{index}"
        told = item.get("type") or "message"
        if not isinstance(told, str) or told not in _KINDS:
            known = ", ".join(_KINDS)
            raise ApiError("invalid", f"{where}.type must be one of {known}", "unsupported_value", f"{where}.type")
        kind, prefix = _KINDS[told]
        read = checked(kind, {key: value for key, value in item.items() if value is not None}, ignored, where)
        made = {"id": new_id(prefix), "type": told, "status": "completed"}
        items.append(made | read.model_dump(exclude_none=True))
    return items


def messages_of(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Translates items into messages. Adjacent reasoning, text and calls of the assistant become one message."""
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


Item = dict[str, Any]


class ResponseOutput:
    """Output items in the order in which the model writes them, one at a time.

    Args:
        name_call: gives calls their ids; they are counted from 0.
        logprobs: whether text parts have log probabilities.
        names: namespace and name of functions with a namespace, by the name that the model uses.
    """

    def __init__(
        self, name_call: Callable[[int], str], logprobs: bool, names: Mapping[str, Item] = MappingProxyType({})
    ) -> None:
        self.items: list[Item] = []
        self._name_call = name_call
        self._logprobs = logprobs
        self._names = names
        self._writing = False  # whether the last item is open

    def read(self, part: ReplyChunk) -> Iterator[BaseModel]:
        """Adds a chunk of the message and yields its events."""
        likely = list(part.likely) if self._logprobs else []
        for delta in part.deltas:
            if isinstance(delta, TextDelta):
                yield from self._text(delta.text, likely)
                likely = []
            else:
                yield from self._other(delta)

    def end(self, cut: bool) -> Iterator[BaseModel]:
        """Ends the message and yields its last events; `cut` says that the model was not done."""
        yield from self._close("incomplete" if cut else "completed")

    def _text(self, text: str, likely: list[TokenLogprob]) -> Iterator[BaseModel]:
        if not self._is_writing("message"):
            part: Item = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item = {"id": new_id("msg"), "type": "message", "role": "assistant", "content": []}
            yield from self._open(item, part)
        part = self.items[-1]["content"][0]
        told = [each.model_dump() for each in logprobs_of(likely).content or ()]
        part["text"] += text
        part["logprobs"] += told
        yield self._event(ResponseTextDeltaEvent, content_index=0, delta=text, logprobs=told)

    def _other(self, delta: Delta) -> Iterator[BaseModel]:
        match delta:
            case ReasoningDelta(text):
                if not self._is_writing("reasoning"):
                    item: Item = {"id": new_id("rs"), "type": "reasoning", "summary": [], "content": []}
                    yield from self._open(item, {"type": "reasoning_text", "text": ""})
                self.items[-1]["content"][0]["text"] += text
                yield self._event(ResponseReasoningTextDeltaEvent, content_index=0, delta=text)
            case CallOpened(index, name):
                called = {"call_id": self._name_call(index), "arguments": ""}
                called |= self._names.get(name, {"name": name})
                yield from self._open({"id": new_id("fc"), "type": "function_call", **called}, None)
            case ArgumentsDelta(_, text):
                self.items[-1]["arguments"] += text
                yield self._event(ResponseFunctionCallArgumentsDeltaEvent, delta=text)
            case CallClosed(_, call):
                yield from self._close("completed" if call.error is None else "incomplete")

    def _is_writing(self, kind: str) -> bool:
        return self._writing and bool(self.items[-1]["type"] == kind)

    def _open(self, item: Item, part: Item | None) -> Iterator[BaseModel]:
        yield from self._close("completed")
        self.items.append(item | {"status": "in_progress"})
        self._writing = True
        yield self._event(ResponseOutputItemAddedEvent, item=self.items[-1])
        if part is not None:
            self.items[-1]["content"].append(part)
            yield self._event(ResponseContentPartAddedEvent, content_index=0, part=part)

    def _close(self, status: str) -> Iterator[BaseModel]:
        if not self._writing:
            return
        self._writing = False
        item = self.items[-1]
        match item["type"]:
            case "function_call":
                told = {"arguments": item["arguments"], "name": item["name"]}
                yield self._event(ResponseFunctionCallArgumentsDoneEvent, **told)
            case "reasoning":
                text = item["content"][0]["text"]
                yield self._event(ResponseReasoningTextDoneEvent, content_index=0, text=text)
                yield self._part_done(item)
            case _:
                part = item["content"][0]
                told = {"text": part["text"], "logprobs": part["logprobs"]}
                yield self._event(ResponseTextDoneEvent, content_index=0, **told)
                yield self._part_done(item)
        item["status"] = status
        yield self._event(ResponseOutputItemDoneEvent, item=item)

    def _part_done(self, item: Item) -> BaseModel:
        return self._event(ResponseContentPartDoneEvent, content_index=0, part=item["content"][0])

    def _event(self, kind: type[BaseModel], /, **fields: Any) -> BaseModel:
        """Makes an event about the last item."""
        item = {} if "item" in fields else {"item_id": self.items[-1]["id"]}
        return event_of(kind, output_index=len(self.items) - 1, **item, **fields)


def event_of(kind: type[BaseModel], /, **fields: Any) -> BaseModel:
    """Makes an event; its sender sets the sequence number."""
    (name,) = get_args(kind.model_fields["type"].annotation)
    return kind.model_validate({"type": name, "sequence_number": 0, **fields})
