"""Values in text of a model's own making: JSON, or Python's spelling of it, and where they end."""

from __future__ import annotations

import ast
import json
import warnings
from typing import Any

from agentkv_runtime.formats.nesting import Nesting

__all__ = ["bracketed", "loose_value"]


def bracketed(text: str, start: int) -> str:
    """From the bracket at `start` to the one that closes it; empty where nothing does."""
    nesting = Nesting("\"'") if text[start + 1 :].lstrip()[:1] == "'" else Nesting()
    for place in range(start, len(text)):
        nesting.read(text[place])
        if nesting.depth == 0:
            return text[start : place + 1]
    return ""


def loose_value(text: str) -> Any:
    """The value that a text spells; None for one that spells none."""
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
