"""Conversations of Anthropic's protocol in OpenAI's form, which chat templates take."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ...agents.results import text_of_error
from ..refused import Refused
from .blocks import Block, Message, Text, Thinking, ToolResult, ToolUse

Placed = tuple[str, Block]
"""A block, and where in the request it stands."""


def openai_messages(system: Sequence[Text], messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation, in OpenAI's form. Several messages of one role in a row are one.

    Raises Refused for blocks where they cannot stand, results without a call, and calls without a result.
    """
    made = [_text("system", system)] if system else []
    asked: dict[str, str] = {}  # calls that wait for their result, and where they stand
    for role, turn in groupby(enumerate(messages), key=lambda each: each[1].role):
        blocks = [placed for index, message in turn for placed in _placed(index, message)]
        if role == "assistant":
            made.append(_assistant(blocks, asked))
            continue
        made += _others(role, blocks, asked)
        for name, where in asked.items():
            raise Refused("invalid", f"the message after it has no tool_result for {name!r}", param=where)
    for name, where in asked.items():
        raise Refused(
            "invalid", f"the last message calls a tool, and there is no tool_result for {name!r}", param=where
        )
    return made


def _placed(index: int, message: Message) -> list[Placed]:
    if not message.content and message.role != "assistant":
        raise Refused("invalid", "it is empty; say something", param=f"messages.{index}.content")
    return [(f"messages.{index}.content.{number}", block) for number, block in enumerate(message.content)]


def _assistant(blocks: Sequence[Placed], asked: dict[str, str]) -> dict[str, Any]:
    """Notes in `asked` what it calls."""
    thoughts, texts, calls = [], [], []
    for where, block in blocks:
        match block:
            case Thinking():
                thoughts.append(block.thinking)
            case Text():
                texts.append(block.text)
            case ToolUse():
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
                asked[block.id] = where
            case _:
                raise Refused("invalid", "a result of a tool is the user's to tell", param=where)
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or (None if calls else "")}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return message | ({"tool_calls": calls} if calls else {})


def _others(role: str, blocks: Sequence[Placed], asked: dict[str, str]) -> list[dict[str, Any]]:
    """Results of tools are messages of their own; their calls leave `asked`."""
    made = []
    for kind, run in groupby(blocks, key=lambda placed: type(placed[1])):
        if kind is Text:
            made.append(_text(role, [block for _, block in run]))
        else:
            made += [_result(role, where, block, asked) for where, block in run]
    return made


def _result(role: str, where: str, block: Block, asked: dict[str, str]) -> dict[str, Any]:
    if role != "user" or not isinstance(block, ToolResult):
        raise Refused("invalid", f"it cannot stand in a message of the role {role!r}", param=where)
    if asked.pop(block.tool_use_id, None) is None:
        told = f"no tool_use before it waits for a result under the id {block.tool_use_id!r}"
        raise Refused("invalid", told, param=f"{where}.tool_use_id")
    text = "".join(part.text for part in block.content)
    content = text_of_error(text or "it failed") if block.is_error else text
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _text(role: str, blocks: Sequence[Block]) -> dict[str, Any]:
    """A block of text is the same as the text: clients mark now this one and now that one for the cache."""
    texts = [block.text for block in blocks if isinstance(block, Text)]
    parts = [{"type": "text", "text": text} for text in texts]
    return {"role": role, "content": texts[0] if len(texts) == 1 else parts}
