"""Grammars by themselves: which texts llguidance accepts, token by token of nano's tokenizer."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
from agentkv_runtime.text.tokenizer import Tokenizer
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

import agentkv as kv


class _Tokens:
    """nano's tokens, as llguidance reads them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokens = tokenizer.token_bytes()
        self.special_token_ids = tokenizer.special_ids
        self.eos_token_id = tokenizer.eos_ids[0]
        self.bos_token_id = None
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(text, parse_special=False)


@cache
def _nano() -> tuple[Tokenizer, LLTokenizer]:
    tokenizer = Tokenizer.from_folder(kv.models.nano())
    return tokenizer, LLTokenizer(TokenizerWrapper(_Tokens(tokenizer)), eos_token=tokenizer.eos_ids)


def accepts(grammar: str, text: str) -> bool:
    """May a generation under the grammar be exactly this text?"""
    tokenizer, native = _nano()
    matcher = LLMatcher(native, grammar)
    tokens = tokenizer.encode(text, parse_special=False)
    accepted = matcher.try_consume_tokens(tokens)
    assert not matcher.is_error(), matcher.get_error()
    return accepted == len(tokens) and matcher.is_accepting()


def walk(grammar: str, rng: random.Random, most: int = 400) -> str | None:
    """A text that random choices among the allowed tokens make; None where `most` tokens did not end it."""
    tokenizer, native = _nano()
    matcher = LLMatcher(native, grammar)
    text, table = b"", tokenizer.token_bytes()
    for _ in range(most):
        mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        assert not matcher.is_error(), matcher.get_error()
        allowed = [int(token) for token in np.flatnonzero(mask) if int(token) not in tokenizer.eos_ids]
        if matcher.is_accepting() and (not allowed or rng.random() < 0.5):
            return text.decode()
        closing = [token for token in allowed if table[token][:1] in b'"]}']
        token = rng.choice(closing if closing and rng.random() < 0.3 else allowed)
        matcher.consume_token(token)
        text += table[token]
    return None
