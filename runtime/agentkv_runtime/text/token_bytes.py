"""Bytes of tokens, derived from the decoder in `tokenizer.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping

from tokenizers import decoders

from agentkv_runtime.errors import TokenizerError

__all__ = ["TokenBytes", "checked_size"]

_BYTE_TOKEN = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")
_SPACE_MARK = "\u2581"  # SentencePiece's visible space


def _byte_of_character() -> dict[str, int]:
    """Byte of each character in byte-level BPE: printable bytes are themselves, others code points from 256 on."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printing}
    others = [byte for byte in range(256) if byte not in set(printing)]
    table.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return table


_BYTES = _byte_of_character()
_BYTE_TABLE = {ord(character): byte for character, byte in _BYTES.items()}
_BORDER = "\uffff"  # no character, and none that a byte stands for
_ONE_SWEEP = {*_BYTES, _BORDER}


# Decoders that spell a token by itself, given what stands beside it.
_BY_ITSELF = {"WordPiece": (["a"], []), "BPEDecoder": ([], ["a"])}
_KNOWN = {None, "ByteLevel", "ByteFallback", "Metaspace", "Replace", "Fuse", "Strip"}
MOST_IDS = 1 << 22


class TokenBytes:
    """Bytes of tokens of byte-level BPE, SentencePiece with byte fallback, WordPiece, and BPE with end-of-word marks.

    Raises TokenizerError for another decoder: CTC's joins equal neighbours, so that no token has bytes of its own.
    """

    def __init__(self, decoder: decoders.Decoder | None, added: Collection[int]) -> None:
        self._added = added
        self._decoder = decoder
        description = json.loads(decoder.__getstate__()) if decoder is not None else {}
        self._beside = _BY_ITSELF.get(description.get("type", ""))
        steps = description.get("decoders", []) if description.get("type") == "Sequence" else [description]
        kinds = {step.get("type") for step in steps}
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        self._space = next((s.get("replacement", _SPACE_MARK) for s in steps if s.get("type") == "Metaspace"), None)
        if self._space is None and any(
            s.get("type") == "Replace" and s.get("pattern", {}).get("String") == _SPACE_MARK for s in steps
        ):
            self._space = _SPACE_MARK
        unknown = kinds - _KNOWN
        if unknown and self._beside is None:
            raise TokenizerError(
                f"a decoder of kind {', '.join(sorted(map(str, unknown)))} is not supported: the bytes of "
                "single tokens are not known; convert the tokenizer to a byte-level one"
            )

    @property
    def lossless(self) -> bool:
        """Whether the tokens of a text keep every byte of it."""
        return self._byte_level or self._byte_fallback

    def table(self, vocabulary: Mapping[str, int]) -> list[bytes]:
        """Bytes of every id from 0 to the highest; empty for unused ids. Raises TokenizerError."""
        size = checked_size(vocabulary)
        table = [b""] * size
        for i, spelled in zip(vocabulary.values(), self._of_tokens(list(vocabulary)), strict=True):
            table[i] = spelled
        for token, i in vocabulary.items() if self._added else ():
            if i in self._added:
                table[i] = token.encode()
        return table

    def _of_tokens(self, tokens: list[str]) -> Iterable[bytes]:
        """Bytes of all tokens; decodes them at once if each character stands for a byte."""
        text = _BORDER.join(tokens)
        if self._byte_level and self._beside is None and set(text) <= _ONE_SWEEP:
            return [token.encode("latin-1") for token in text.translate(_BYTE_TABLE).split(_BORDER)]
        return map(self._of_token, tokens)

    def _of_token(self, token: str) -> bytes:
        if self._beside is not None and self._decoder is not None:
            before, after = self._beside
            spelled: str = self._decoder.decode([*before, token, *after])
            return spelled[len(before) : len(spelled) - len(after)].encode()
        if self._byte_level:
            if all(character in _BYTES for character in token):
                return bytes(_BYTES[character] for character in token)
            return token.encode()
        if self._byte_fallback and (match := _BYTE_TOKEN.match(token)):
            return bytes([int(match[1], 16)])
        return (token.replace(self._space, " ") if self._space else token).encode()


def checked_size(vocabulary: Mapping[str, int]) -> int:
    """One past the highest id. Raises TokenizerError for ids that are too large for tables."""
    highest = max(vocabulary.values(), default=-1)
    if highest >= MOST_IDS:
        token = next(token for token, i in vocabulary.items() if i == highest)
        raise TokenizerError(
            f"token {token[:40]!r} has the id {highest}, but ids must be below {MOST_IDS}; give the tokens of "
            "tokenizer.json ids without large gaps"
        )
    return highest + 1
