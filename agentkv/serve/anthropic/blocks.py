"""What messages of Anthropic's requests are made of."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from ..body import Body


class CacheControl(Body):
    """Where a prefix ends that is to be cached. Every prefix is, so it changes nothing."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Block(Body):
    """A part of a message."""

    cache_control: CacheControl | None = None


class Text(Block):
    """Text."""

    type: Literal["text"]
    text: str
    citations: Annotated[list[Any], Field(max_length=0)] | None = None


class Caller(Body):
    """Who called: the model itself."""

    type: Literal["direct"]


class ToolUse(Block):
    """A call of a tool that the model made."""

    type: Literal["tool_use"]
    id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    input: Any = None  # an object, but for what other makers write
    caller: Caller | None = None


class Thinking(Block):
    """What the model thought. Its signature says nothing here: thoughts are plain text."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


def _blocks(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


Texts: TypeAlias = Annotated[list[Text], BeforeValidator(_blocks)]
"""Text, or blocks of it."""


class ToolResult(Block):
    """What a tool returned, or why it failed."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts = Field(default_factory=list)
    is_error: bool | None = None


AnyBlock: TypeAlias = Annotated[Text | ToolUse | ToolResult | Thinking, Field(discriminator="type")]


class Message(Body):
    """A message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[AnyBlock], BeforeValidator(_blocks)]
