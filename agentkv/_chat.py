"""Chat messages as tokens: whole conversations, and messages that go on from what a branch already holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentkv_runtime.errors import TokenizerError

from ._errors import InvalidInput

if TYPE_CHECKING:
    from agentkv_runtime.tokenizer import Tokenizer

    from ._inputs import Message

_REPLY = "\u241fREPLY\u241f"  # stands for the assistant's turn; no template spells it


def begin_chat(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None
) -> list[int]:
    """Tokens of a conversation from its start, with the assistant's turn opened where it is the assistant's turn."""
    return tokenizer.encode(_render(tokenizer, messages, tools, _asks_for_reply(messages)))


def continue_chat(tokenizer: Tokenizer, messages: Sequence[Message], log: Sequence[int]) -> list[int]:
    """Tokens that add messages to a branch that holds `log`.

    The branch usually ends in the assistant's turn, with or without its end token; the turn is closed as the template
    closes it, and nothing that is already there is repeated.
    """
    so_far: list[Message] = [{"role": "user", "content": "."}, {"role": "assistant", "content": _REPLY}]
    closing = _after_reply(_render(tokenizer, so_far, None, False))
    added = _after_reply(_render(tokenizer, [*so_far, *messages], None, _asks_for_reply(messages)))
    if not added.startswith(closing):
        return tokenizer.encode(added)
    closing_ids = tokenizer.encode(closing)
    there = _overlap(log, closing_ids)
    return closing_ids[there:] + tokenizer.encode(added[len(closing) :])


def _asks_for_reply(messages: Sequence[Message]) -> bool:
    return messages[-1]["role"] not in ("system", "developer", "assistant")


def _overlap(log: Sequence[int], closing: Sequence[int]) -> int:
    """How many tokens of `closing` the log already ends with."""
    for n in range(min(len(log), len(closing)), 0, -1):
        if list(log[-n:]) == list(closing[:n]):
            return n
    return 0


def _after_reply(text: str) -> str:
    _, found, after = text.rpartition(_REPLY)
    if not found:
        raise InvalidInput("the chat template drops the assistant's turns; extend the branch with text instead")
    return after


def _render(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, reply: bool
) -> str:
    try:
        return tokenizer.render_chat(messages, tools, reply)
    except TokenizerError as error:
        raise InvalidInput(str(error)) from error
