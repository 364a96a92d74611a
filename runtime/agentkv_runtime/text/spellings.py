"""Tokens that are spellings of one word."""

from __future__ import annotations

from collections.abc import Sequence


def spellings(token_bytes: Sequence[bytes]) -> list[int]:
    """For each token, the first one that differs from it in white space around it and in case alone."""
    first: dict[bytes, int] = {}
    return [first.setdefault(text.strip().lower() or text, token) for token, text in enumerate(token_bytes)]
