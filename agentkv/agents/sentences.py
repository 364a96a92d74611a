"""Ends of sentences in text that is still being written."""

from __future__ import annotations

import re

_END = re.compile(
    r"""
    [.!?\u2026]+ ["'\u201d\u2019\u00bb)\]*_`]* (?= \s | $ )  # a mark, with what closes behind it
    | [\u3002\uff01\uff1f]+ [\u201d\u2019\u300d\u300f\uff09]*  # of Chinese and Japanese, which no space follows
    | (?<= \S ) (?= \n )  # a line: of a list, of code, a heading
    """,
    re.VERBOSE,
)
_NUMBER = re.compile(r"(?:^|\n)[ \t]*(?:\d{1,3}|[A-Za-z])[.)]$")  # of an item of a list, whose sentence comes behind it


def ends_of_sentences(text: str) -> list[int]:
    """Offsets behind the whole sentences of a text, ascending: behind a mark that ends one, and at the ends of
    lines. The end of the text counts only behind such a mark."""
    ends = {match.end() for match in _END.finditer(text)}
    return sorted(end for end in ends if not _NUMBER.search(text[:end]))
