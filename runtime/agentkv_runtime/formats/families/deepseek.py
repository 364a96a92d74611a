"""DeepSeek V3 and R1 (JSON in a code block), and V3.1 (JSON alone)."""

from agentkv_runtime.formats.call_spelling import NamedJsonCall
from agentkv_runtime.formats.families.family import FUNCTION, Family
from agentkv_runtime.formats.spelling import Calls

__all__ = ["DEEPSEEK_V3", "DEEPSEEK_V31"]


def _token(words: str) -> str:
    """A control token of these words, with DeepSeek's wide bars and low blocks in place of bars and spaces."""
    return f"<\uff5c{words.replace(' ', chr(0x2581))}\uff5c>"


_CALLS, _CALLS_END = _token("tool calls begin"), _token("tool calls end")
_CALL, _CALL_END = _token("tool call begin"), _token("tool call end")
_SEPARATOR = _token("tool sep")

DEEPSEEK_V3 = Family(
    "deepseek-v3",
    {
        "open_pattern": rf"(?:\s*{_CALLS})?\s*{_CALL}function{_SEPARATOR}(?P<name>[^\n]+)\n```json\n",
        "close": f"\n```{_CALL_END}",
        "content": "json",
        "transform": FUNCTION,
    },
    Calls(
        NamedJsonCall("\n```json\n"),
        before=f"{_CALL}function{_SEPARATOR}",
        after=f"\n```{_CALL_END}",
        between="\n",
        section=(_CALLS, _CALLS_END),
        marker=_CALLS,
        also=(_CALL,),
    ),
    ends=(_CALLS_END,),
)
DEEPSEEK_V31 = Family(
    "deepseek-v3.1",
    {
        "open_pattern": rf"(?:\s*{_CALLS})?\s*{_CALL}(?P<name>[^<\n\uff5c]+){_SEPARATOR}",
        "close": _CALL_END,
        "content": "json",
        "transform": FUNCTION,
    },
    Calls(
        NamedJsonCall(_SEPARATOR),
        before=_CALL,
        after=_CALL_END,
        section=(_CALLS, _CALLS_END),
        marker=_CALLS,
        also=(_CALL,),
    ),
    ends=(_CALLS_END,),
)
