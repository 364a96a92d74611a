"""Prompts that a benchmark continues."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv_runtime.folder.small_files import read_text

from .._context.branch import Branch
from .._context.context import Context
from .._types.errors import InvalidInput
from ..output import JsonSchema

OWN_NAME = "prompts.jsonl"  # where a model folder has prompts of its own
GENERIC = Path(__file__).parent / "generic.jsonl"


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A prompt: text, or chat messages and their tools.

    Attributes:
        content: the text, or the messages.
        tools: tool definitions for the chat template.
        schema: JSON Schema that the answer keeps to; None for any text.
        max_tokens: number of tokens that the answer needs; None where the prompt does not say.
    """

    content: str | list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    schema: dict[str, Any] | None = None
    max_tokens: int | None = None

    @property
    def output(self) -> Any:
        """The constraint on the answer, as `Branch.generate` takes it."""
        return str if self.schema is None else JsonSchema(self.schema)

    async def branch(self, ctx: Context) -> Branch:
        """Makes a branch of the prompt. Without a chat template, messages become plain text.

        Prompts are recordings, so control tokens in their texts, such as those around calls, are parsed.
        """
        content = self.content
        if isinstance(content, str):
            return await ctx.branch(content)
        if not ctx.tokenizer.has_chat_template:
            return await ctx.branch(plain_text(content))
        return await ctx.branch(ctx.tokenizer.render_chat(content, self.tools))


def plain_text(messages: Sequence[dict[str, Any]]) -> str:
    """Messages as text for a model without a chat template, up to where the assistant's answer begins."""
    said = [f"{str(message.get('role', '')).capitalize()}:\n{_text(message)}\n" for message in messages]
    return "\n".join([*said, "Assistant:\n"])


def read_prompts(path: Path) -> list[BenchPrompt]:
    """Reads the prompts of a file, one per line.

    A line of a `.jsonl` file is a JSON string, a list of chat messages, or an object with `messages` and, optionally,
    `tools`, `schema` and `max_tokens`; a line of any other file is text. Raises InvalidInput that names the line.
    """
    lines = read_text(path, InvalidInput).splitlines()
    json_lines = path.suffix == ".jsonl"
    prompts = [
        _parsed(line, f"{path}, line {number}") if json_lines else BenchPrompt(line)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not prompts:
        raise InvalidInput(f"{path} holds no prompt; write one per line")
    return prompts


def has_own_prompts(model: Path) -> bool:
    """Whether the model's folder has prompts of its own."""
    return os.path.lexists(model / OWN_NAME)


def default_prompts(model: Path) -> list[BenchPrompt]:
    """Prompts of the model's folder, or generic ones."""
    return read_prompts(model / OWN_NAME if has_own_prompts(model) else GENERIC)


def _text(message: dict[str, Any]) -> str:
    calls = [json.dumps(call.get("function", call)) for call in message.get("tool_calls") or ()]
    return "\n".join(part for part in (str(message.get("content") or ""), *calls) if part)


def _parsed(line: str, where: str) -> BenchPrompt:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where} is not JSON: {error}") from error
    if isinstance(value, str) and value:
        return BenchPrompt(value)
    fields = value if isinstance(value, dict) else {"messages": value}
    messages, schema, max_tokens = (fields.get(name) for name in ("messages", "schema", "max_tokens"))
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise InvalidInput(f"{where} is neither a str, nor a list of chat messages, nor an object with `messages`")
    if schema is not None and not isinstance(schema, dict):
        raise InvalidInput(f"{where} has a `schema` that is no JSON object")
    if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 2):
        raise InvalidInput(f"{where} has a `max_tokens` that is no int of at least 2")
    return BenchPrompt(messages, fields.get("tools"), schema, max_tokens)
