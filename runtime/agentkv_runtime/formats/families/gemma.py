"""Gemma 4 and FunctionGemma: a notation of their own, with strings between control tokens."""

from dataclasses import replace

from agentkv_runtime.formats.call_spelling import NotedCall
from agentkv_runtime.formats.families.family import FUNCTION, Family
from agentkv_runtime.formats.notation import Notation
from agentkv_runtime.formats.spelling import Calls

__all__ = ["FUNCTION_GEMMA", "GEMMA"]

_NOTATION = Notation("true", "false", "null", ",", ":", quote='<|"|>', quoted_keys=False)


def _calls(opening: str, closing: str, quote: str) -> dict[str, object]:
    return {
        "open_pattern": rf"\s*{opening}call:(?P<name>[\w.-]+)",
        "close": closing,
        "content": "json",
        "content_args": {"unquoted_keys": True, "string_delims": [[quote, quote]]},
        "transform": FUNCTION,
    }


GEMMA = Family(
    "gemma",
    _calls(r"<\|tool_call>", "<tool_call|>", '<|"|>'),
    Calls(
        NotedCall(replace(_NOTATION, never=("<tool_call|>",))),
        before="<|tool_call>call:",
        after="<tool_call|>",
        marker="<|tool_call>",
    ),
    thinking=("<|channel>thought\n", "<channel|>"),
    ends=("<|tool_response>",),
)
FUNCTION_GEMMA = Family(
    "functiongemma",
    _calls("<start_function_call>", "<end_function_call>", "<escape>"),
    Calls(
        NotedCall(replace(_NOTATION, quote="<escape>", never=("<end_function_call>",))),
        before="<start_function_call>call:",
        after="<end_function_call>",
        marker="<start_function_call>",
    ),
    ends=("<start_function_response>",),
)
