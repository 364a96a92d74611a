"""Llama 3 and 4: a message that begins like a call is calls, as JSON or as Python."""

from agentkv_runtime.formats.call_spelling import JsonCall, PythonCall
from agentkv_runtime.formats.families.family import AT_END, Family
from agentkv_runtime.formats.spelling import Calls

__all__ = ["LLAMA_JSON", "PYTHONIC"]

_OPEN = r"(?:\A|(?<=</think>))\s*(?:<\|python_tag\|>|<\|python_start\|>)?\s*"
_CLOSE = rf"\s*(?:<\|python_end\|>|{AT_END})"

LLAMA_JSON = Family(
    "llama-json",
    {
        "open_pattern": _OPEN + r'(?=\{\s*"name"\s*:)',
        "close_pattern": _CLOSE,
        "content": "json",
        "transform": {
            "type": "function",
            "function": {"name": "{content.name}", "arguments": "{content.parameters}"},
        },
    },
    Calls(JsonCall(arguments="parameters"), several=False, begins=r'\s*\{\s*"name"\s*:'),
)

PYTHONIC = Family(
    "pythonic",
    {
        "open_pattern": _OPEN + r"(?=\[\s*[A-Za-z_][\w.]*\()",
        "close_pattern": _CLOSE,
        "content": "pythonic",
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
        "transform_each": True,
        "repeats": False,
    },
    Calls(PythonCall(), between=", ", section=("[", "]"), begins=r"\s*\[\s*[A-Za-z_][\w.]*\("),
)
