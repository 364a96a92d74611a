"""Lenient parsing of values that a model wrote as JSON or Python."""

from __future__ import annotations

import ast
import json
import warnings
from typing import Any

from agentkv_runtime.formats.nesting import Nesting

__all__ = ["bracketed", "loose_value"]


def bracketed(text: str, start: int) -> str:
    """The text from the bracket at `start` to the one that closes it; empty if none does."""
    nesting = Nesting("\"'") if text[start + 1 :].lstrip()[:1] == "'" else Nesting()
    for place in range(start, len(text)):
        nesting.read(text[place])
        if nesting.depth == 0:
            return text[start : place + 1]
    return ""


def loose_value(text: str) -> Any:
    """The value of a text; None if it is neither JSON nor a Python literal."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        pass
    try:
        with warnings.catch_warnings():  # of escapes that Python does not know
            warnings.simplefilter("ignore")
            return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None
