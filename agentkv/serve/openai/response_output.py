"""The output of a response while it is written: its items, and the events that tell of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, get_args

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
from pydantic import BaseModel

from ..reply import Likely, Part
from .logprobs import logprobs_of
from .response_items import new_id

Item = dict[str, Any]


class Output:
    """Items in the order in which the model writes them. One is written at a time.

    Args:
        name_call: gives calls their ids; they are counted from 0.
        logprobs: are they part of the text?
        names: of functions with a namespace, by the names that the model calls them by.
    """

    def __init__(
        self, name_call: Callable[[int], str], logprobs: bool, names: Mapping[str, Item] = MappingProxyType({})
    ) -> None:
        self.items: list[Item] = []
        self._name_call = name_call
        self._logprobs = logprobs
        self._names = names
        self._writing = False  # the last item

    def read(self, part: Part) -> Iterator[BaseModel]:
        """Takes a part of the message, and tells of it."""
        likely = list(part.likely) if self._logprobs else []
        for delta in part.deltas:
            if isinstance(delta, TextDelta):
                yield from self._text(delta.text, likely)
                likely = []
            else:
                yield from self._other(delta)

    def end(self, cut: bool) -> Iterator[BaseModel]:
        """The message is over; `cut` where the model was not done."""
        yield from self._close("incomplete" if cut else "completed")

    def _text(self, text: str, likely: list[Likely]) -> Iterator[BaseModel]:
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
        """An event that is about the last item."""
        item = {} if "item" in fields else {"item_id": self.items[-1]["id"]}
        return event_of(kind, output_index=len(self.items) - 1, **item, **fields)


def event_of(kind: type[BaseModel], /, **fields: Any) -> BaseModel:
    """An event; whoever sends it numbers it."""
    (name,) = get_args(kind.model_fields["type"].annotation)
    return kind.model_validate({"type": name, "sequence_number": 0, **fields})
