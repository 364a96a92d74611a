"""Which bytes a token stands for, read from what its `tokenizer.json` says of decoding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentkv_runtime.errors import TokenizerError

__all__ = ["TokenBytes"]

_BYTE_TOKEN = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")
_SPACE_MARK = "\u2581"  # SentencePiece's visible space


def _byte_of_character() -> dict[str, int]:
    """The table of byte-level BPE: bytes that print stand for themselves, the others for code points from 256 on."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printing}
    others = [byte for byte in range(256) if byte not in set(printing)]
    table.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return table


_BYTES = _byte_of_character()


class TokenBytes:
    """Knows byte-level BPE and SentencePiece with byte fallback. Raises TokenizerError for another decoder."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._added = {token["id"]: token["content"] for token in description.get("added_tokens", [])}
        decoder = description.get("decoder") or {}
        steps = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
        kinds = {step.get("type") for step in steps}
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        self._space = next((s.get("replacement", _SPACE_MARK) for s in steps if s.get("type") == "Metaspace"), None)
        if self._space is None and any(
            s.get("type") == "Replace" and s.get("pattern", {}).get("String") == _SPACE_MARK for s in steps
        ):
            self._space = _SPACE_MARK
        unknown = kinds - {None, "ByteLevel", "ByteFallback", "Metaspace", "Replace", "Fuse", "Strip"}
        if unknown:
            raise TokenizerError(f"a decoder of kind {', '.join(sorted(map(str, unknown)))} is not supported")

    def table(self, vocabulary: Mapping[str, int]) -> list[bytes]:
        """The bytes of every id from 0 to the highest; ids that no token has are empty."""
        table = [b""] * (max(vocabulary.values(), default=-1) + 1)
        for token, i in vocabulary.items():
            table[i] = self._of_text(token) if i in self._added else self._of_token(token)
        return table

    def _of_text(self, token: str) -> bytes:
        return token.encode()

    def _of_token(self, token: str) -> bytes:
        if self._byte_level:
            if all(character in _BYTES for character in token):
                return bytes(_BYTES[character] for character in token)
            return token.encode()
        if self._byte_fallback and (match := _BYTE_TOKEN.match(token)):
            return bytes([int(match[1], 16)])
        return (token.replace(self._space, " ") if self._space else token).encode()
