"""Hermes, Qwen 2.5 and 3, Granite 4, SmolLM3 and many others: JSON between `<tool_call>` tags. nano writes no line
breaks inside of them."""

from agentkv_runtime.formats.call_spelling import JsonCall
from agentkv_runtime.formats.families.family import Family
from agentkv_runtime.formats.spelling import Calls

__all__ = ["HERMES", "NANO"]

_CALLS = {
    "open_pattern": r"\s*<tool_call>",
    "close": "</tool_call>",
    "content": "json",
    "transform": {"type": "function", "function": "{content}"},
}

HERMES = Family("hermes", _CALLS, Calls(JsonCall(), "<tool_call>\n", "\n</tool_call>", "\n"))
NANO = Family("nano", _CALLS, Calls(JsonCall(), "<tool_call>", "</tool_call>", "\n"))
