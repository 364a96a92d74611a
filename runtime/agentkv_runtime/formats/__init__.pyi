"""What `agentkv_runtime.formats` offers; `__init__.py` imports each name when it is first asked for."""

from .families import FAMILIES, Family
from .find import find_format, format_name
from .format import Choice, Format
from .parsed import (
    ArgumentsDelta,
    CallClosed,
    CallOpened,
    Delta,
    ParsedCall,
    ParsedMessage,
    ReasoningDelta,
    TextDelta,
)
from .parser import MessageParser

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
