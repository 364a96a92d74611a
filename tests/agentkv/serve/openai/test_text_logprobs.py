"""Tokens of raw texts that are no characters of their own, or held back."""

from __future__ import annotations

from agentkv._types.results import Token, TopLogprob
from agentkv.serve.openai.logprobs import TextLogprobs

SPELLED = [b"a", "é".encode()[:1], "é".encode()[1:], b"<end>", b"b"]


def token(id: int, text: str) -> Token:
    return Token(id, text, -1.0, 0, (TopLogprob(0, "a", -0.5),))


def test_halves_of_a_character_come_with_it() -> None:
    likely = TextLogprobs(SPELLED, b"")
    assert likely.of([token(0, "a"), token(1, "")]).tokens == ["a"]
    said = likely.of([token(2, "é"), token(4, "b")])
    assert said.tokens == ["bytes:\\xc3", "bytes:\\xa9", "b"]
    assert said.text_offset == [1, 1, 2]
    assert said.top_logprobs == [{"a": -0.5, name: -1.0} for name in said.tokens]


def test_text_that_was_held_back_brings_its_tokens_and_an_end_never_does() -> None:
    likely = TextLogprobs(SPELLED, b"")
    assert likely.of([token(0, ""), token(4, "")]).tokens == []
    assert likely.of([token(-1, "ab")]).tokens == ["a", "b"]
    assert likely.of([token(3, "")]).tokens == []
