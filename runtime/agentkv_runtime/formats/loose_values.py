"""Lenient parsing of values that a model wrote as JSON or Python."""

from __future__ import annotations

import ast
import json
import re
import warnings
from typing import Any

__all__ = ["bracketed", "loose_value", "unclosed"]

_BEHIND = re.compile(r"(?:\s|`{3,}+|<[^<>\n]{1,42}>)*+$")  # it can be read in one way only: in bounded time
_OPENING, _CLOSING = "[{(", "]})"
_JSON = r"""[\[\](){}]|"(?:[^"\\]|\\.)*+"?"""
_IN_JSON = re.compile(_JSON, re.DOTALL)  # brackets and strings
_IN_PYTHON = re.compile(_JSON + r"""|'(?:[^'\\]|\\.)*+'?""", re.DOTALL)
_MOST_BEHIND = 100  # characters of fences and tags


def bracketed(text: str, start: int) -> str:
    """The text from the bracket at `start` to the one that closes it; empty if none does."""
    tokens = _IN_PYTHON if text[start + 1 :].lstrip()[:1] == "'" else _IN_JSON
    depth = 0
    for token in tokens.finditer(text, start):
        depth += (token[0] in _OPENING) - (token[0] in _CLOSING)
        if depth == 0:
            return text[start : token.end()]
    return ""


def unclosed(text: str, start: int) -> tuple[str, str]:
    """A call or a list of calls at `start` that lacks nothing but its own closing brackets: as written, and closed.

    Both are empty for any other text: where more is missing, so may be a part of what is inside.
    """
    end = max(start, len(text) - _MOST_BEHIND)
    written = text[start:end] + _BEHIND.sub("", text[end:], count=1)
    closings = ("]", "}]") if written.startswith("[") else ("}",)
    for closing in closings if written.endswith("}") else ():
        if len(bracketed(closed := written + closing, 0)) == len(closed):
            return written, closed
    return "", ""


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
