"""LFM2: a list of Python calls between markers."""

from agentkv_runtime.formats.call_spelling import PythonCall
from agentkv_runtime.formats.families.family import Family
from agentkv_runtime.formats.spelling import Calls

__all__ = ["LFM2"]

LFM2 = Family(
    "lfm2",
    {
        "open_pattern": r"\s*<\|tool_call_start\|>",
        "close": "<|tool_call_end|>",
        "content": "pythonic",
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
        "transform_each": True,
        "repeats": False,
    },
    Calls(
        PythonCall(),
        between=", ",
        section=("<|tool_call_start|>[", "]<|tool_call_end|>"),
        marker="<|tool_call_start|>",
    ),
)
