"""Call formats: how models write reasoning and calls of tools.

A Context finds the format of its model by itself; `Context.open(call_format=...)` names another: one of `NAMES`, a
response template (the description that transformers 5.13 and later read from `tokenizer_config.json`), or a `Format`:

    async with kv.Context.open("my-model", call_format="hermes") as ctx: ...

A family of your own is a response template's field that reads its calls, and their spelling:

    mine = kv.formats.Family(
        "mine",
        {"open": "<call>", "close": "</call>", "content": "json", "transform": {"function": "{content}"}},
        kv.formats.Calls(kv.formats.JsonCall(), "<call>", "</call>"),
    )
    kv.Context.open("my-model", call_format=mine)
"""

from agentkv_runtime.formats import FAMILIES, Family, Format, MessageParser, ParsedCall, ParsedMessage
from agentkv_runtime.formats.call_spelling import CallSpelling, JsonCall, NamedJsonCall, PythonCall, TaggedCall
from agentkv_runtime.formats.parsed import (
    ArgumentsDelta,
    CallClosed,
    CallOpened,
    Delta,
    ReasoningDelta,
    TextDelta,
)
from agentkv_runtime.formats.spelling import Calls, Spelling

__all__ = [
    "NAMES",
    "ArgumentsDelta",
    "CallClosed",
    "CallOpened",
    "CallSpelling",
    "Calls",
    "Delta",
    "Family",
    "Format",
    "JsonCall",
    "MessageParser",
    "NamedJsonCall",
    "ParsedCall",
    "ParsedMessage",
    "PythonCall",
    "ReasoningDelta",
    "Spelling",
    "TaggedCall",
    "TextDelta",
]

NAMES: tuple[str, ...] = tuple(FAMILIES)
"""Of the formats that are known."""
