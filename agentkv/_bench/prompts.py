"""Prompts that a benchmark continues."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv_runtime.folder.small_files import read_text

from .._context.branch import Branch
from .._context.context import Context
from .._types.errors import InvalidInput

OWN_NAME = "prompts.jsonl"  # where a model folder has prompts of its own
GENERIC = Path(__file__).parent / "generic.jsonl"


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A prompt: text, or chat messages and their tools."""

    content: str | list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None

    async def branch(self, ctx: Context) -> Branch:
        """Makes a branch of the prompt. Without a chat template, messages become their bare text.

        Prompts are recordings, so control tokens in their texts, such as those around calls, are parsed.
        """
        content = self.content
        if isinstance(content, str):
            return await ctx.branch(content)
        if not ctx.tokenizer.has_chat_template:
            return await ctx.branch("\n".join(str(message.get("content", "")) for message in content) + "\n")
        return await ctx.branch(ctx.tokenizer.render_chat(content, self.tools))


def read_prompts(path: Path) -> list[BenchPrompt]:
    """Reads the prompts of a file, one per line.

    A line of a `.jsonl` file is a JSON string, a list of chat messages, or an object with `messages` and,
    optionally, `tools`; a line of any other file is text. Raises InvalidInput that names the line.
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


def default_prompts(model: Path) -> list[BenchPrompt]:
    """Prompts of the model's folder, or generic ones."""
    own = model / OWN_NAME
    return read_prompts(own if os.path.lexists(own) else GENERIC)


def _parsed(line: str, where: str) -> BenchPrompt:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where} is not JSON: {error}") from error
    if isinstance(value, str) and value:
        return BenchPrompt(value)
    if isinstance(value, dict):
        messages, tools = value.get("messages"), value.get("tools")
    else:
        messages, tools = value, None
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise InvalidInput(f"{where} is neither a str, nor a list of chat messages, nor an object with `messages`")
    return BenchPrompt(messages, tools)
