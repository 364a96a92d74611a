"""Qwen3-Coder and Qwen 3.5: every argument between tags of its own."""

from agentkv_runtime.formats.call_spelling import TaggedCall
from agentkv_runtime.formats.families.family import FUNCTION, Family
from agentkv_runtime.formats.spelling import Calls

__all__ = ["QWEN_XML"]

_ENDS = ("</function>\n</tool_call>", "</function></tool_call>")

QWEN_XML = Family(
    "qwen-xml",
    {
        "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
        "close": list(_ENDS),
        "content": "xml-inline",
        "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"},
        "transform": FUNCTION,
    },
    Calls(
        TaggedCall("<function={}>\n", "<parameter={}>\n", "\n</parameter>\n", "</function>", never=_ENDS),
        before="<tool_call>\n",
        after="\n</tool_call>",
        between="\n",
    ),
)
