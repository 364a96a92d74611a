"""Call formats: what a model writes, read as a message while it arrives, and grammars of what it may write."""

from agentkv_runtime.formats.families import FAMILIES, Family
from agentkv_runtime.formats.find import find_format, format_name
from agentkv_runtime.formats.format import Choice, Format
from agentkv_runtime.formats.parsed import (
    ArgumentsDelta,
    CallClosed,
    CallOpened,
    Delta,
    ParsedCall,
    ParsedMessage,
    ReasoningDelta,
    TextDelta,
)
from agentkv_runtime.formats.parser import MessageParser

__all__ = [
    "FAMILIES",
    "ArgumentsDelta",
    "CallClosed",
    "CallOpened",
    "Choice",
    "Delta",
    "Family",
    "Format",
    "MessageParser",
    "ParsedCall",
    "ParsedMessage",
    "ReasoningDelta",
    "TextDelta",
    "find_format",
    "format_name",
]
