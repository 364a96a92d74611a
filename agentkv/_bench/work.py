"""Kinds of work that `agentkv bench spec` measures: files of prompts that ship with the package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .._types.errors import InvalidInput
from .prompts import BenchPrompt, read_prompts

FOLDER = Path(__file__).parent / "work"
# What the output repeats of the input, most of it first.
KINDS = {
    "edit": "a file of about 60 lines, the same again with one change",
    "extract": "JSON of a given schema, out of a text",
    "tools": "answers out of long results of tools",
    "prose": "free prose",
}


def read_work(kinds: Sequence[str], n: int) -> dict[str, list[BenchPrompt]]:
    """The first n prompts of each kind, or all that it has. Raises InvalidInput for an unknown kind."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise InvalidInput(f"{unknown[0]!r} is no kind of work; there are {', '.join(KINDS)}")
    return {kind: read_prompts(FOLDER / f"{kind}.jsonl")[:n] for kind in kinds}
