"""Held-out prompts as a file: `python -m examples.nano.prompts agentkv/models/nano/prompts.jsonl`.

Each line is a conversation up to where the assistant speaks, with its tools: before a call, or before an answer. They
are what `agentkv bench` has a model go on with whose folder holds them.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Annotated, Any

import typer

from .data import Message, conversation


def prompts(count: int, seed: int) -> list[dict[str, Any]]:
    """Held-out conversations, each cut before one of the assistant's turns in its last round."""
    rng = random.Random(f"{seed}:prompts")
    made = []
    for _ in range(count):
        talk = conversation(rng, "eval", rounds=rng.choice((1, 1, 2)))
        messages: list[Message] = talk.messages()
        first = len(messages) - len(talk.rounds[-1].messages())
        turns = [i for i in range(first, len(messages)) if messages[i]["role"] == "assistant"]
        made.append({"messages": messages[: rng.choice(turns)], "tools": talk.tools()})
    return made


def main(
    out: Annotated[Path, typer.Argument(help="File to write.")],
    count: Annotated[int, typer.Option(help="Prompts.")] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the questions.")] = 1,
) -> None:
    """Write held-out prompts, one per line."""
    lines = [json.dumps(prompt, ensure_ascii=False, separators=(",", ":")) for prompt in prompts(count, seed)]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
