"""Texts read in one piece, character by character, and in random cuts."""

from __future__ import annotations

import random
from collections.abc import Iterator

from agentkv_runtime.formats import (
    ArgumentsDelta,
    CallClosed,
    CallOpened,
    Delta,
    Format,
    ParsedMessage,
    ReasoningDelta,
    TextDelta,
)


def cuts(text: str, seed: int = 0, times: int = 8) -> Iterator[list[str]]:
    """The text whole, in characters, and in random pieces."""
    yield [text]
    yield list(text)
    choose = random.Random(f"{seed}{text}")
    for _ in range(times):
        places = sorted(choose.sample(range(len(text) + 1), min(len(text) + 1, choose.randrange(1, 9))))
        yield [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def read(form: Format, pieces: list[str], **options: object) -> tuple[ParsedMessage, list[Delta]]:
    """The message of some pieces, and all deltas on the way."""
    parser = form.parser(**options)  # type: ignore[arg-type]
    deltas = [delta for piece in pieces for delta in parser.feed(piece)] + parser.end()
    return parser.finish(), deltas


def check_deltas(message: ParsedMessage, deltas: list[Delta]) -> None:
    """Do the deltas add up to the message?"""
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == message.content
    assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) == message.reasoning
    closed = [delta for delta in deltas if isinstance(delta, CallClosed)]
    assert tuple(delta.call for delta in closed) == message.calls
    assert [delta.index for delta in closed] == list(range(len(closed)))
    opened = {delta.index: delta.name for delta in deltas if isinstance(delta, CallOpened)}
    assert opened == {index: call.name for index, call in enumerate(message.calls) if call.name}
    ended = -1
    begun: set[int] = set()
    for delta in deltas:
        if isinstance(delta, CallOpened):
            begun.add(delta.index)
        elif isinstance(delta, ArgumentsDelta):
            assert delta.index in begun
            assert delta.index > ended
        elif isinstance(delta, CallClosed):
            ended = delta.index
