"""A list of calls as JSON in a code block: the spelling for models without one, or that do not keep to theirs."""

from __future__ import annotations

from collections.abc import Sequence

from agentkv_runtime.formats.answering import ANSWER_NAME, ANSWER_TEXT
from agentkv_runtime.formats.call_spelling import JsonCall, Tool
from agentkv_runtime.formats.lark import Lark
from agentkv_runtime.formats.spelling import Calls, Wanted, WrittenCall

__all__ = ["FENCED"]

# How models begin calls in other spellings.
_NOT_FIRST = r"\s*([{\[]|```|<[|a-z_]*(tool|function|call))"
# What an answer in words has nothing of.
_NOT_IN_WORDS = r"\s*[{\[`<]"
_OF_CALLS = r"[\"'](name|tool|function|arguments|parameters)[\"']\s*:"


class _FencedList(Calls):
    """A message that begins like a call in any spelling must be a list of calls; other text is free.

    Grammars end with the list, as models that may close the code block end the list after its first call.
    """

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """Writes calls with the end of the code block."""
        return super().written(calls) + "\n```"

    def message(self, lark: Lark, wanted: Wanted) -> str:
        """Grammar expression of the message."""
        if not wanted.text or (wanted.output is not None and not (wanted.answers and wanted.tools)):
            return super().message(lark, wanted)
        if not wanted.tools:
            return self.after_thought(lark, wanted, self._words(lark, wanted))
        calls = self.calls(lark, wanted.tools, self.opener, most=wanted.most_calls)
        other = self._answer(lark, wanted) if wanted.answers else self._text(lark, wanted)
        return self.after_thought(lark, wanted, lark.either("body", [calls, other]))

    def _words(self, lark: Lark, wanted: Wanted) -> str:
        """Grammar expression of text that is no call in any spelling."""
        without = [*(marker for marker in wanted.markers if marker != self.marker), *(wanted.thinking or ())[:1]]
        return lark.free_text(without, not_first=_NOT_IN_WORDS, nowhere=_OF_CALLS)

    def _text(self, lark: Lark, wanted: Wanted) -> str:
        return lark.free_text((wanted.thinking or ())[:1], not_first=_NOT_FIRST)

    def _answer(self, lark: Lark, wanted: Wanted) -> str:
        """Grammar expression of a call of the answer function with a text, or with a value of the wanted schema."""
        said = {"type": "string"} if wanted.output is None else wanted.output
        parameters = {
            "type": "object",
            "properties": {ANSWER_TEXT: said},
            "required": [ANSWER_TEXT],
            "additionalProperties": False,
        }
        answer = self.call.grammar(lark, Tool(ANSWER_NAME, parameters), self.opener)
        return f"{answer} {lark.text(self.section[1])}"


FENCED = _FencedList(JsonCall(), between=", ", section=("```json\n[", "]"), marker="```json\n[", dress="json")
"""Spelling that `DressedCalls` reads, as no template can tell such calls from other code blocks."""
