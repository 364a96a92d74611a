"""Description of a family of models that write calls alike."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.format import Format
from agentkv_runtime.formats.spelling import NoCalls, Spelling
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
    """A format before it is fitted to a tokenizer."""

    name: str
    calls: Mapping[str, Any] | None = None
    """Field of the response template that reads calls; None without calls."""
    spelling: Spelling = field(default_factory=NoCalls)
    """Spelling of calls."""
    thinking: tuple[str, str] | None = THINK
    """Opening and closing marker of the reasoning, for models that reason."""
    ends: tuple[str, ...] = ()
    """Texts that may follow the calls, beside the tokens that end a message."""
    more: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further fields of the response template, or replacements of its usual ones."""

    def check(self) -> None:
        """Raises FormatError for invalid markers of the reasoning."""
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
