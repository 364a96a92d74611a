"""An answer in words as one more function that a model may call, so that each of its messages is a list of calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentkv_runtime.formats.parsed import ParsedCall

__all__ = ["ANSWER", "ANSWER_NAME", "ANSWER_TEXT", "answer_in", "is_answer", "with_answer"]

ANSWER_NAME = "answer"
ANSWER_TEXT = "text"
ANSWER: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": ANSWER_NAME,
        "description": "Answers the user in words. For when no other function fits the question.",
        "parameters": {"type": "object", "properties": {ANSWER_TEXT: {"type": "string"}}, "required": [ANSWER_TEXT]},
    },
}
"""The definition that says so, for the prompt."""


def is_answer(definition: Mapping[str, Any]) -> bool:
    """Is it that definition, and no tool of the same name?"""
    return definition == ANSWER


def with_answer(definitions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Definitions with that one at the end; as they are where there are none, or a tool has its name."""
    names = {definition.get("function", definition).get("name") for definition in definitions}
    return [*definitions, ANSWER] if definitions and ANSWER_NAME not in names else list(definitions)


def answer_in(call: ParsedCall) -> str:
    """What such a call says; a value that is no text is JSON."""
    said = (call.arguments or {}).get(ANSWER_TEXT, "")
    return said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
