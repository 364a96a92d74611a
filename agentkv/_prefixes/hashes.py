"""PromptNames of beginnings of prompts: one hash per block of tokens, each of all tokens up to there."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

BLOCK = 64
"""Tokens of a block. Recurrent states are stored at the ends of blocks of as many."""

Hashes = npt.NDArray[np.uint64]


def block_hashes(tokens: Sequence[int], key: bytes) -> Hashes:
    """Hashes of the beginnings of `tokens` that end with a whole block, shortest first, without the last token, which
    is computed for its logits: uint64 [blocks]. `key` separates models and kinds of caches, up to 64 bytes."""
    blocks = max(len(tokens) - 1, 0) // BLOCK
    whole = np.asarray(tokens[: blocks * BLOCK], np.int32).reshape(blocks, BLOCK)
    hashes = np.empty(blocks, np.uint64)
    before = b""
    for index in range(blocks):
        before = hashlib.blake2b(before + whole[index].tobytes(), digest_size=8, key=key).digest()
        hashes[index] = int.from_bytes(before, "little")
    return hashes
