"""The text of tokens, spelled as the engine spells what it generates."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentkv_runtime.tokenizer import Tokenizer


class Spelling:
    """Of one model. Bytes that are not UTF-8 become U+FFFD; ids that only the model has stand for nothing."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _bytes(self) -> list[bytes]:
        return self._tokenizer.token_bytes()

    @cached_property
    def _special(self) -> frozenset[int]:
        return frozenset(self._tokenizer.special_ids)

    def token(self, token: int) -> str:
        """What one token spells by itself, a special one too."""
        return self.piece(token).decode("utf-8", "replace")

    def text(self, tokens: Iterable[int]) -> str:
        """What generated tokens spell: special ones nothing."""
        return self.spelled(tokens).decode("utf-8", "replace")

    def spelled(self, tokens: Iterable[int]) -> bytes:
        """The same as bytes, of which the last may be a part of a character."""
        return b"".join(self.piece(token) for token in tokens if token not in self._special)

    def piece(self, token: int) -> bytes:
        """The bytes of one token, a special one too."""
        return self._bytes[token] if token < len(self._bytes) else b""
