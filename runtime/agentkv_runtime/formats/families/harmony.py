"""gpt-oss: messages in channels (Harmony). Reasoning, calls and answers are messages each."""

from __future__ import annotations

import json
from collections.abc import Sequence

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.call_spelling import Tool
from agentkv_runtime.formats.families.family import AT_END, FUNCTION, Family
from agentkv_runtime.formats.lark import Lark
from agentkv_runtime.formats.spelling import Spelling, Thinking, Wanted, WrittenCall
from agentkv_runtime.formats.thought import Markers

__all__ = ["HARMONY"]

_START, _CHANNEL, _MESSAGE = "<|start|>assistant", "<|channel|>", "<|message|>"
_END, _CALL = "<|end|>", "<|call|>"
_RECIPIENT = r"\s+to=functions\.(?P<name>[\w.-]+)"
_TYPE = r"(?:\s*(?:<\|constrain\|>)?\w+)?\s*<\|message\|>"


class _Channels(Spelling):
    """Spelling of Harmony: one call, after the other messages."""

    several = False

    def written(self, calls: Sequence[WrittenCall]) -> str:
        if len(calls) > 1:
            raise FormatError(f"in this format a message makes one call, not {len(calls)}")
        [(name, arguments)] = calls
        head = f"{_CHANNEL}commentary to=functions.{name} <|constrain|>json{_MESSAGE}"
        return head + json.dumps(arguments, ensure_ascii=False) + _CALL

    def write(self, content: str, calls: Sequence[WrittenCall], reasoning: str, thinking: Thinking) -> str:
        channels = [f"{_CHANNEL}analysis{_MESSAGE}{reasoning}"] if reasoning else []
        if content or not calls:
            channels.append(f"{_CHANNEL}{'commentary' if calls else 'final'}{_MESSAGE}{content}")
        return f"{_END}{_START}".join([*channels, *([self.written(calls)] if calls else [])])

    def thought(self, thinking: Thinking) -> Markers:
        # Up to where channels part: which one comes is settled there.
        return Markers(f"{_CHANNEL}analysis", _END, before=_START, optional=False)

    def calls(self, lark: Lark, tools: Sequence[Tool], before: str, *, most: int) -> str:
        # What ends a call ends the generation too, so it is no part of the grammar.
        head, body = (
            lark.text(f"{before}{_CHANNEL}commentary to=functions."),
            lark.text(f" <|constrain|>json{_MESSAGE}"),
        )
        named = (f"{lark.text(tool.name)} {body} {lark.json(tool.parameters)}" for tool in tools)
        return f"{head} {lark.either('call', named)}"

    def message(self, lark: Lark, wanted: Wanted) -> str:
        controls = [_END, _CALL, _CHANNEL, _MESSAGE, "<|start|>", "<|return|>"]
        text = lark.free_text(controls)
        to_the_end = f"{text} {lark.text(_END + _START)}"
        analysis = lark.text(f"{_CHANNEL}analysis{_MESSAGE}")
        choices = []
        if wanted.tools:
            preamble = f"({lark.text(f'{_CHANNEL}commentary{_MESSAGE}')} {to_the_end})?"
            choices.append(f"{preamble} {self.calls(lark, wanted.tools, '', most=wanted.most_calls)}")
        if wanted.text:
            final = lark.json(wanted.output) if wanted.output is not None else text
            choices.append(f"{lark.text(f'{_CHANNEL}final{_MESSAGE}')} {final}")
        thoughts = f"({analysis} {to_the_end})*"
        if wanted.in_reasoning:
            thoughts = f"{to_the_end} {thoughts}"
        return f"{thoughts} {lark.either('body', choices)}"


HARMONY = Family(
    "harmony",
    {
        "open_pattern": (
            rf"(?:<\|start\|>assistant)?(?:<\|channel\|>\w+{_RECIPIENT}|{_RECIPIENT}<\|channel\|>\w+){_TYPE}"
        ),
        "close_pattern": rf"\s*(?:<\|call\|>|{AT_END})",
        "content": "json",
        "transform": FUNCTION,
    },
    _Channels(),
    thinking=None,
    more={
        "reasoning_content": {
            "open_pattern": r"(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>",
            "close": _END,
            "repeats": True,
            "join": "\n",
        },
        "content": {
            "open_pattern": r"(?:<\|start\|>assistant)?<\|channel\|>(?:final|commentary)<\|message\|>",
            "close": [_END, "<|return|>"],
            "repeats": True,
            "join": "\n",
        },
    },
)
