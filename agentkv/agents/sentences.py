"""Ends of sentences in text that is still being written."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from agentkv_runtime.formats.parsed import Delta, TextDelta

if TYPE_CHECKING:
    from .._chat.reply import ReplyParser

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


def tokens_of_sentences(tokens: Sequence[int], make_parser: Callable[[], ReplyParser]) -> int:
    """Number of tokens of a message through the last whole sentence of its text, without calls; 0 where none is whole.

    `make_parser` makes a parser of the message.
    """
    parser, text, lengths = make_parser(), "", list[int]()
    for token in tokens:
        text += text_of(parser.feed_ids([token]))
        lengths.append(len(text))

    def says(count: int, wanted: str) -> bool:
        """Are so many tokens a message of this text, and nothing behind it? A parser may hold text back."""
        parser = make_parser()
        parser.feed_ids(tokens[:count])
        message = parser.finish()
        return not message.calls and message.content.strip() == wanted.strip()

    for end in reversed(ends_of_sentences(text)):
        count = bisect_left(lengths, end) + 1
        if text[:end].strip() and says(count, text[:end]):
            while says(count - 1, text[:end]):
                count -= 1  # its end was held back, or a space came behind it
            return count
    return 0


def text_of(deltas: Iterable[Delta]) -> str:
    """The text in deltas of a message."""
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
