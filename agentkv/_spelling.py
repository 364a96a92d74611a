"""The text of tokens, spelled as the engine spells what it generates.

A character that is begun and not ended is no text yet: whoever writes the rest of it writes all of it. It is U+FFFD
once something else came behind it.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentkv_runtime.text.tokenizer import Tokenizer

_LONGEST_BEGINNING = 3  # bytes of a character without its last
_ENDED = ("eos", "stop")  # by the model or a stop string, behind which nothing ends a character


def text_decoder(begun: bytes = b"") -> codecs.IncrementalDecoder:
    """What makes text of bytes as they come, behind the beginning of a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(begun)
    return decoder


def text_of_generation(spelled: bytes, finish_reason: str | None) -> str:
    """The text of what was generated: whole characters."""
    return text_decoder().decode(spelled, final=is_ended(finish_reason))


def is_ended(finish_reason: str | None) -> bool:
    """Does nothing end a character that such a generation has begun?"""
    return finish_reason in _ENDED


def beginning(spelled: bytes) -> bytes:
    """The bytes at the end that begin a character and do not end it."""
    decoder = text_decoder()
    decoder.decode(spelled[-_LONGEST_BEGINNING:])
    return decoder.getstate()[0]


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

    def begun(self, tokens: Sequence[int]) -> bytes:
        """The bytes of a character that the last tokens begin and do not end."""
        spelled = b""
        for token in reversed(tokens):
            if token in self._special or len(spelled) >= _LONGEST_BEGINNING:
                break
            spelled = self.piece(token) + spelled
        return beginning(spelled)

    def whole(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones too, without a character that the last ones begin and do not end."""
        begun, end, cut = len(self.begun(tokens)), len(tokens), b""
        while begun and (len(cut) < begun or cut[0] & 0xC0 == 0x80):  # back to where a character begins
            end -= 1
            cut = self.piece(tokens[end]) + cut
        ids = [token for token in tokens[:end] if token < self._tokenizer.vocab_size]
        return self._tokenizer.decode(ids, skip_special=False) + cut[: len(cut) - begun].decode("utf-8", "replace")

    def spelled(self, tokens: Iterable[int]) -> bytes:
        """The same as bytes, of which the last may be a part of a character."""
        return b"".join(self.piece(token) for token in tokens if token not in self._special)

    def piece(self, token: int) -> bytes:
        """The bytes of one token, a special one too."""
        return self._bytes[token] if token < len(self._bytes) else b""
