"""Messages of the model in the shape of Anthropic's API: whole, and as events of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from agentkv_runtime.formats.parsed import ArgumentsDelta, CallOpened, Delta, ReasoningDelta, TextDelta
from anthropic.types import (
    ContentBlock,
    InputJSONDelta,
    RawContentBlockDelta,
    RawContentBlockDeltaEvent,
    RawContentBlockStartEvent,
    RawContentBlockStopEvent,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from anthropic.types import TextDelta as TextPiece
from pydantic import BaseModel

from ..._types.message import Message
from ..reply import Reply

_ENDED: dict[str, StopReason] = {"length": "max_tokens", "context_full": "model_context_window_exceeded"}


def blocks_of(message: Message) -> list[ContentBlock]:
    """Content blocks of a message. Truncated calls are left out."""
    blocks: list[ContentBlock] = []
    if message.reasoning:
        blocks.append(_thinking(message.reasoning))
    if message.content:
        blocks.append(TextBlock(type="text", text=message.content))
    for call in message.calls:
        if call.error is None:
            blocks.append(_tool_use(call.id or "", call.name, dict(call.arguments or {})))
    return blocks


def stop_of(written: Reply) -> dict[str, Any]:
    """Reason for the end of a message: `stop_reason` and `stop_sequence`."""
    reason: StopReason = "tool_use" if written.calls else "end_turn"
    if written.stopped_by is not None:
        reason = "stop_sequence"
    return {
        "stop_reason": _ENDED.get(written.generation.finish_reason, reason),
        "stop_sequence": written.stopped_by,
    }


class Blocks:
    """Content of a message as events: one block after another, each closed before the next opens."""

    def __init__(self, name_call: Callable[[int], str]) -> None:
        self._name_call = name_call  # gives calls their ids; they are counted from 0
        self._kind: object = None  # type of the open block; None if none is open
        self._index = -1

    def of(self, delta: Delta) -> Iterator[BaseModel]:
        """Yields the events that one delta adds."""
        match delta:
            case TextDelta(text):
                yield from self._more(TextBlock(type="text", text=""), TextPiece(type="text_delta", text=text))
            case ReasoningDelta(text):
                yield from self._more(_thinking(""), ThinkingDelta(type="thinking_delta", thinking=text))
            case CallOpened(index, name):
                yield from self.end()
                yield self._opened(_tool_use(self._name_call(index), name, {}))
            case ArgumentsDelta(_, text):
                yield self._delta(InputJSONDelta(type="input_json_delta", partial_json=text))

    def end(self) -> Iterator[BaseModel]:
        """Closes the open block, if there is one."""
        if self._kind is not None:
            self._kind = None
            yield RawContentBlockStopEvent(type="content_block_stop", index=self._index)

    def _more(self, block: ContentBlock, delta: RawContentBlockDelta) -> Iterator[BaseModel]:
        if self._kind is not type(block):
            yield from self.end()
            yield self._opened(block)
        yield self._delta(delta)

    def _opened(self, block: ContentBlock) -> BaseModel:
        self._kind = type(block)
        self._index += 1
        return RawContentBlockStartEvent(type="content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: RawContentBlockDelta) -> BaseModel:
        return RawContentBlockDeltaEvent(type="content_block_delta", index=self._index, delta=delta)


def _thinking(text: str) -> ThinkingBlock:
    return ThinkingBlock(type="thinking", thinking=text, signature="")


def _tool_use(name: str, tool: str, arguments: dict[str, Any]) -> ToolUseBlock:
    return ToolUseBlock(type="tool_use", id=name, name=tool, input=arguments)
