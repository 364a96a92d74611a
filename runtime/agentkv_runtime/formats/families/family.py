"""Description of a family of models that write calls alike."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.call_spelling import CallSpelling
from agentkv_runtime.formats.format import Format
from agentkv_runtime.formats.spelling import Calls, NoCalls, Spelling
from agentkv_runtime.formats.template import load_template

__all__ = ["AT_END", "FUNCTION", "THINK", "Family"]

THINK = ("<think>", "</think>")
FUNCTION = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
"""Transform of a call whose opening marker has the name."""

_HEADER = "<|im_start|>assistant\n"
_ENDS = (
    *("<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|end|>", "<|return|>"),
    *("</s>", "<eos>", "<end_of_turn>", "<turn|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
)
AT_END = "|".join([*map(re.escape, _ENDS), r"\Z"])
"""Pattern of the markers that end a message, or of the end of the text."""


@dataclass(frozen=True)
class Family:
    """A format before it is fitted to a tokenizer.

    Attributes:
        name: name of the format.
        calls: field of the response template that reads calls; None without calls.
        spelling: spelling of calls.
        thinking: opening and closing marker of the reasoning, for models that reason.
        ends: texts that may follow the calls, beside the tokens that end a message.
        more: further fields of the response template, or replacements of its usual ones.
    """

    name: str
    calls: Mapping[str, Any] | None = None
    spelling: Spelling = field(default_factory=NoCalls)
    thinking: tuple[str, str] | None = THINK
    ends: tuple[str, ...] = ()
    more: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def check(self) -> None:
        """Raises FormatError for invalid markers of the reasoning, a field that reads no calls to their end, and a
        spelling that writes none."""
        spelling = self.spelling.call if isinstance(self.spelling, Calls) else self.spelling
        if not isinstance(spelling, Spelling | CallSpelling) or (self.calls and isinstance(spelling, NoCalls)):
            raise FormatError(
                f"spelling of the format {self.name!r} has {type(spelling).__name__}, which writes no calls; give one "
                "such as kv.formats.Calls(kv.formats.JsonCall(), before, after)"
            )
        if self.calls and not self.calls.keys() & {"close", "close_pattern"}:
            raise FormatError(f"calls of the format {self.name!r} have no end; give close or close_pattern")
        if self.thinking and not all(self.thinking):
            raise FormatError(
                f"thinking of the format {self.name!r} is {self.thinking!r}; give what opens the reasoning and what "
                "closes it, at least 1 character each, or None"
            )

    def fit(
        self,
        tokens: Mapping[str, int],
        *,
        ends: tuple[str, ...] = (),
        thinks: bool = True,
        headers: Sequence[str] = (),
    ) -> Format:
        """The format of one model of the family.

        Args:
            tokens: ids of the tokenizer's added tokens.
            ends: texts of the tokens that end a generation.
            thinks: whether the model reasons.
            headers: texts that the chat template may write before a reply.
        """
        template = load_template(self.template(thinks=thinks, headers=headers))
        return Format(self.name, template, self.spelling, self.thinking if thinks else None, tokens, ends)

    def template(self, *, thinks: bool = True, headers: Sequence[str] = ()) -> dict[str, Any]:
        """The response template that reads messages of the family."""
        fields: dict[str, Any] = {}
        if self.thinking and thinks:
            opened, closed = self.thinking
            fields["reasoning_content"] = {"open": opened, "close": closed, "repeats": True, "join": "\n"}
        if self.calls:
            fields["tool_calls"] = {"repeats": True, **self.calls}
        ends = "|".join([*map(re.escape, self.ends), AT_END])
        # White space before an end belongs to no region.
        fields["content"] = {"close_pattern": rf"\s*(?:{ends})", "repeats": True, "join": "\n"}
        return {
            "defaults": {"role": "assistant"},
            "start_anchor": list(headers) or [_HEADER],
            "fields": {**fields, **self.more},
        }
