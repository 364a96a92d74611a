"""What a model generated, read as a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkv_runtime.tokenizer import Tokenizer

    from ._conversation import Entry


class ReplyReader:
    """Makes messages of generated tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ends = frozenset(tokenizer.eos_ids)

    def text(self, log: Sequence[int], start: int) -> tuple[str, int]:
        """The text of the tokens from `start` on, control tokens included, and where they end: before end tokens."""
        end = len(log)
        while end > start and log[end - 1] in self._ends:
            end -= 1
        size = self._tokenizer.vocab_size
        return self._tokenizer.decode([i for i in log[start:end] if i < size], skip_special=False), end

    def message(self, text: str, entries: Sequence[Entry]) -> dict[str, Any]:
        """The assistant's message, as a template gets it, that comes after `entries`."""
        return {"role": "assistant", "content": text}

    def agree(self, one: str, other: str) -> bool:
        """Are two texts the same message? White space around its parts does not matter."""
        return _essence(self.message(one, ())) == _essence(self.message(other, ()))


def _essence(message: Mapping[str, Any]) -> tuple[object, ...]:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return (message["content"] or "").strip(), (message.get("reasoning_content") or "").strip(), calls
