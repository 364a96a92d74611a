"""Tokens that end a model's turn, beyond those that its files declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agentkv_runtime.errors import TokenizerError

if TYPE_CHECKING:
    from agentkv_runtime.text.tokenizer import Tokenizer

__all__ = ["usual_ends", "written_end"]

_REPLY = "9f1d27c05e8b4a36"  # stands for a message; no template spells it
_SECONDS = 1.0  # a rendering may take

_NAMES = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<turn|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|end_of_turn|>",
    "<|endofturn|>",
    "[|endofturn|]",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
)
_PARTS_OF_MESSAGES = {"<|end|>": "<|return|>"}
"""Tokens that end no turn if the vocabulary has the other token: Harmony's messages have several parts."""


def usual_ends(added: Mapping[str, int]) -> list[int]:
    """Ids of the added tokens that end a turn in every family that has them; `added` are ids by spelling."""
    return [added[name] for name in _NAMES if name in added and _PARTS_OF_MESSAGES.get(name) not in added]


def written_end(tokenizer: Tokenizer) -> int | None:
    """Id of the added token that the chat template writes after an assistant's last message; None without one.

    White space may precede it. A token that also opens the message does not count, as it begins the next one.
    """
    messages = [{"role": "user", "content": "."}, {"role": "assistant", "content": _REPLY}]
    try:
        text = tokenizer.render(messages, None, False, {}, _SECONDS)
    except TokenizerError:
        return None
    start = text.text.rfind(_REPLY)
    if start < 0:
        return None
    end = start + len(_REPLY)
    controls = tokenizer.added.controls_in(text)
    opener = next((control.id for control in reversed(controls) if control.end <= start), None)
    behind = next((control for control in controls if control.start >= end), None)
    if behind is None or behind.id == opener or text.text[end : behind.start].strip():
        return None
    return behind.id
