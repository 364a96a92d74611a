"""A list of calls as JSON in a code block: the spelling of models that know none, or do not keep to theirs."""

from __future__ import annotations

from collections.abc import Sequence

from agentkv_runtime.formats.call_spelling import JsonCall
from agentkv_runtime.formats.lark import Lark
from agentkv_runtime.formats.spelling import Calls, Wanted, WrittenCall

__all__ = ["FENCED"]

# How models begin calls in other spellings.
_NOT_FIRST = r"\s*([{\[]|```|<[|a-z_]*(tool|function|call))"


class _FencedList(Calls):
    """Where a message begins as a call in any spelling, only a list of calls may stand; later its text is free.

    A model that may close the code block ends the list after its first call; so messages end with the list.
    """

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """Calls with the end of the code block, for what others read."""
        return super().written(calls) + "\n```"

    def message(self, lark: Lark, wanted: Wanted) -> str:
        """The message: an expression."""
        if not wanted.tools or wanted.output is not None or not wanted.text:
            return super().message(lark, wanted)
        calls = self.calls(lark, wanted.tools, self.opener, parallel=wanted.parallel)
        free = lark.free_text((wanted.thinking or ())[:1], not_first=_NOT_FIRST)
        return self.after_thought(lark, wanted, lark.either("body", [calls, free]))


FENCED = _FencedList(JsonCall(), between=", ", section=("```json\n[", "]"), marker="```json\n[", dress="json")
"""Read by the reader of calls in any spelling; no template tells them from other code blocks."""
