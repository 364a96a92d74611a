"""Detection of text that looks like a call and was not parsed as one."""

from __future__ import annotations

from collections.abc import Mapping

from agentkv_runtime.formats.known_tools import ARGUMENT_KEYS
from agentkv_runtime.formats.loose_values import bracketed, loose_value, unclosed

__all__ = ["shown_call"]

_LONGEST = 20_000  # characters that are looked through


def shown_call(text: str) -> str | None:
    """Tool name in the first JSON object of a text that has a name and arguments; None without one."""
    text = text[:_LONGEST]
    at = text.find("{")
    while at >= 0 and '"name"' in text[at:]:
        raw = bracketed(text, at) or unclosed(text, at)[1]
        value = loose_value(raw) if raw else None
        name = value.get("name") if isinstance(value, Mapping) else None
        if isinstance(value, Mapping) and isinstance(name, str) and any(key in value for key in ARGUMENT_KEYS):
            return name
        at = text.find("{", at + (len(raw) if isinstance(value, Mapping) else 1))
    return None
