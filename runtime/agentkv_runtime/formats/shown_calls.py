"""Detection of text that looks like a call and was not parsed as one."""

from __future__ import annotations

import re
from collections.abc import Mapping

from agentkv_runtime.formats.known_tools import ARGUMENT_KEYS
from agentkv_runtime.formats.loose_values import bracketed, loose_value, unclosed

__all__ = ["shown_call"]

_LONGEST = 20_000  # characters that are looked through
_MOST = 50  # objects: each that is not closed is read to the end of the text
_OBJECT = re.compile(r'\{\s{0,80}"')


def shown_call(text: str) -> str | None:
    """Tool name in the first JSON object of a text that has a name and arguments; None without one."""
    text, at = text[:_LONGEST], 0
    for _ in range(_MOST if '"name"' in text else 0):
        match = _OBJECT.search(text, at)
        if match is None:
            break
        at = match.start()
        raw = bracketed(text, at) or unclosed(text, at)[1]
        value = loose_value(raw) if raw else None
        name = value.get("name") if isinstance(value, Mapping) else None
        if isinstance(value, Mapping) and isinstance(name, str) and any(key in value for key in ARGUMENT_KEYS):
            return name
        at += len(raw) if isinstance(value, Mapping) else 1
    return None
