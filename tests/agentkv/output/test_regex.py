"""Regular expressions as outputs."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

import agentkv as kv

from .matching import accepts, walk


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (r"[0-9]{4}", ["1234"], ["123", "12345", "x234", ""]),
        (r"^[0-9]{4}$", ["1234"], ["^1234$", "12345"]),
        (r"yes|no", ["yes", "no"], ["yesno", "maybe"]),
        (r"a/b\.c", ["a/b.c"], ["a/bxc"]),
        (r"a.b", ["axb", "a\u00e9b"], ["a\nb"]),
        (r"(?s)a.b", ["a\nb"], ["ab"]),
        (r"(?i)nano", ["nano", "NaNo"], ["nan"]),
        (r"", [""], ["a"]),
    ],
)
def test_the_whole_text_matches(pattern: str, yes: list[str], no: list[str]) -> None:
    grammar = kv.Regex(pattern).grammar
    assert [text for text in yes if not accepts(grammar, text)] == []
    assert [text for text in no if accepts(grammar, text)] == []


def test_random_texts_of_a_pattern_match_it() -> None:
    pattern = r"[A-Z][a-z]{1,8}( [A-Z][a-z]{1,8}){0,2}: (-?[0-9]{1,3}|none)"
    for seed in range(30):
        text = walk(kv.Regex(pattern).grammar, random.Random(seed))
        assert text is not None
        assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "[", r"\bword\b", "a^b", "(?<!a)b"])
def test_what_a_grammar_cannot_hold_is_refused(pattern: str) -> None:
    with pytest.raises(kv.InvalidInput, match="cannot be made a grammar"):
        kv.Regex(pattern)


@pytest.mark.parametrize("pattern", [None, 5, b"a", re.compile("a"), ["a"]])
def test_a_pattern_is_text(pattern: Any) -> None:
    with pytest.raises(kv.InvalidInput, match="pattern is"):
        kv.Regex(pattern)
    with pytest.raises(kv.InvalidInput, match="surrogate"):
        kv.Regex("a\ud800")


def test_equal_patterns_are_one_key() -> None:
    assert {kv.Regex("a"): 1}[kv.Regex("a")] == 1
    assert kv.Regex("a") != kv.Regex("b")
    assert repr(kv.Regex("a")) == "Regex(pattern='a')"
