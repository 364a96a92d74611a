"""GLM 4.5 and later: the name, then every argument as a key and a value between tags."""

from agentkv_runtime.formats.call_spelling import TaggedCall
from agentkv_runtime.formats.families.family import FUNCTION, Family
from agentkv_runtime.formats.spelling import Calls

__all__ = ["GLM"]

GLM = Family(
    "glm",
    {
        "open_pattern": r"\s*<tool_call>(?P<name>[\w.-]+)\s*(?=<arg_key>|</tool_call>)",
        "close": "</tool_call>",
        "content": "xml-inline",
        "content_args": {"tag_pattern": r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"},
        "transform": FUNCTION,
    },
    Calls(
        TaggedCall("{}\n", "<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>\n", "", never=("</tool_call>",)),
        before="<tool_call>",
        after="</tool_call>",
        between="\n",
    ),
    ends=("<|user|>", "<|observation|>"),
)
