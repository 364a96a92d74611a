"""Granite 3 and Phi-4-mini: a list of calls as JSON after a marker. (Granite 4 writes as Hermes does.)"""

from agentkv_runtime.formats.call_spelling import JsonCall
from agentkv_runtime.formats.families.family import AT_END, Family
from agentkv_runtime.formats.spelling import Calls

__all__ = ["GRANITE", "PHI4"]

_LIST = {
    "open_pattern": r"\s*<\|tool_call\|>\s*(?=\[)",
    "close_pattern": rf"\s*(?:<\|/tool_call\|>|{AT_END})",
    "content": "json",
    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
    "transform_each": True,
    "repeats": False,
}
_MARKER = "<|tool_call|>"

PHI4 = Family(
    "phi4", _LIST, Calls(JsonCall(), between=", ", section=("<|tool_call|>[", "]<|/tool_call|>"), marker=_MARKER)
)
GRANITE = Family("granite", _LIST, Calls(JsonCall(), between=", ", section=("<|tool_call|>[", "]"), marker=_MARKER))
