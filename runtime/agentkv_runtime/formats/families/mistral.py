"""Mistral: a list of calls as JSON after one marker, or (since Mistral Small 3.2) a marker, name and arguments each."""

from agentkv_runtime.formats.call_spelling import JsonCall, NamedJsonCall
from agentkv_runtime.formats.families.family import AT_END, FUNCTION, Family
from agentkv_runtime.formats.spelling import Calls

__all__ = ["MISTRAL", "MISTRAL_ARGS", "MISTRAL_SPACED"]

_LIST = {
    "open_pattern": r"\s*\[TOOL_CALLS\]\s*(?=\[)",
    "close_pattern": rf"\s*(?:{AT_END})",
    "content": "json",
    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
    "transform_each": True,
    "repeats": False,
}
_THINK = ("[THINK]", "[/THINK]")

MISTRAL = Family(
    "mistral",
    _LIST,
    Calls(JsonCall(), between=", ", section=("[TOOL_CALLS][", "]"), marker="[TOOL_CALLS]"),
    thinking=_THINK,
)
MISTRAL_SPACED = Family(
    "mistral-spaced",  # of the tokenizers before Tekken
    _LIST,
    Calls(JsonCall(), between=", ", section=("[TOOL_CALLS] [", "]"), marker="[TOOL_CALLS]"),
    thinking=_THINK,
)
MISTRAL_ARGS = Family(
    "mistral-args",
    {
        "open_pattern": r"\s*\[TOOL_CALLS\](?P<name>[^\[\]{\s]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)",
        "close_pattern": rf"\s*(?:(?=\[TOOL_CALLS\])|{AT_END})",
        "content": "json",
        "transform": FUNCTION,
    },
    Calls(NamedJsonCall("[ARGS]"), before="[TOOL_CALLS]"),
    thinking=_THINK,
)
