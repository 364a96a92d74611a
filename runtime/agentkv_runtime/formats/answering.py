"""Answers in words as a call of one more function, for models whose every message is a list of calls."""

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
"""Definition of the answer function, for the prompt."""


def is_answer(definition: Mapping[str, Any]) -> bool:
    """Whether a definition is `ANSWER` itself, not a user's tool of the same name."""
    return definition == ANSWER


def with_answer(definitions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Definitions with `ANSWER` appended; unchanged if there are none or if a tool has its name."""
    names = {definition.get("function", definition).get("name") for definition in definitions}
    return [*definitions, ANSWER] if definitions and ANSWER_NAME not in names else list(definitions)


def answer_in(call: ParsedCall) -> str:
    """Text of a call of the answer function; values other than str become JSON."""
    said = (call.arguments or {}).get(ANSWER_TEXT, "")
    return said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
