"""Grammars held against texts and walked at random, by llguidance over a tokenizer trained here."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from agentkv_runtime.text.tokenizer import Tokenizer
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from tokenizers import AddedToken

from tests.runtime.chat_styles import byte_level


@cache
def tokenizer_with(tokens: tuple[str, ...], *, special: bool = True) -> Tokenizer:
    """A byte-level BPE tokenizer with an end token and these added tokens."""
    backend = byte_level()
    backend.add_special_tokens(["<|end of text|>"])
    backend.add_tokens([AddedToken(token, special=special, normalized=False) for token in tokens])
    return Tokenizer(backend, config={"eos_token": "<|end of text|>"})


class _Wrapped:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id, self.bos_token_id = tokenizer.eos_ids[0], None
        self.tokens, self.special_token_ids = tokenizer.token_bytes(), tokenizer.special_ids
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace"), parse_special=False)


class Grammar:
    """A grammar over a tokenizer's vocabulary."""

    def __init__(self, tokenizer: Tokenizer, lark: str) -> None:
        self.tokenizer, self._lark = tokenizer, lark
        self._vocabulary = LLTokenizer(
            TokenizerWrapper(_Wrapped(tokenizer)), n_vocab=tokenizer.vocab_size, eos_token=tokenizer.eos_ids
        )
        error = LLMatcher.validate_grammar(lark, self._vocabulary)
        assert not error, f"{error}\n{lark}"

    def _begin(self) -> Any:
        return LLMatcher(self._vocabulary, self._lark)

    def takes(self, text: str) -> bool:
        """May the message be this text?"""
        matcher, ids = self._begin(), self.tokenizer.encode(text)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def taken(self, text: str) -> str:
        """How much of a text may stand at the beginning."""
        ids = self.tokenizer.encode(text)
        return self.tokenizer.decode(ids[: self._begin().try_consume_tokens(ids)], skip_special=False)

    def walk(self, seed: object, most: int = 400, liked: Sequence[str] = ()) -> tuple[str, bool]:
        """A text of random tokens that the grammar allows, with the texts in `liked` more often; and is it whole?"""
        choose, matcher = random.Random(f"{seed}"), self._begin()
        mask = allocate_token_bitmask(1, self.tokenizer.vocab_size)
        good = [self.tokenizer.encode(text) for text in liked]
        ids: list[int] = []
        while len(ids) < most:
            if good and choose.random() < 0.5:
                tokens = choose.choice(good)
                ids += tokens[: matcher.try_consume_tokens(tokens)]
                assert not matcher.is_error(), matcher.get_error()
                if matcher.is_stopped():
                    return self.tokenizer.decode(ids, skip_special=False), True
            fill_next_token_bitmask(matcher, mask)
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
            allowed = [int(i) for i in np.nonzero(bits[: self.tokenizer.vocab_size])[0]]
            assert allowed, f"nothing may come after {self.tokenizer.decode(ids, skip_special=False)!r}"
            token = choose.choice(allowed)
            if token in self.tokenizer.eos_ids:
                return self.tokenizer.decode(ids, skip_special=False), True
            ids.append(token)
            assert matcher.consume_token(token)
            if matcher.is_stopped():
                return self.tokenizer.decode(ids, skip_special=False), True
        return self.tokenizer.decode(ids, skip_special=False), False
