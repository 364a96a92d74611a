"""How an answer is drawn as it grows."""

from __future__ import annotations

import io
import random

import pyte
import pytest
from rich.console import Console

from agentkv.terminal.answer import AnswerView

TEXT = """# Title

A paragraph with **bold** words that is long enough to be wrapped by a narrow terminal, at some place or other.

- one
- two

```python
print("a  b")

print("c")
```

| a | b |
| - | - |
| 1 | 2 |

The end."""


def screen_of(pieces: list[str], width: int = 60, height: int = 40) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=height, color_system=None)
    with AnswerView(console) as answer:
        for piece in pieces:
            answer.add(piece)
            answer._drawn = 0.0  # each of them is drawn
    screen = pyte.HistoryScreen(width, height, history=10_000)
    pyte.Stream(screen).feed(out.getvalue().replace("\n", "\r\n"))
    gone = ["".join(line[x].data for x in range(width)) for line in screen.history.top]
    return [line.rstrip() for line in [*gone, *screen.display] if line.strip()]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_the_pieces_the_screen_is_the_same(seed: int) -> None:
    rng, pieces, rest = random.Random(seed), [], TEXT
    while rest:
        size = rng.choice([1, 2, 3, 7, 30])
        pieces.append(rest[:size])
        rest = rest[size:]
    assert screen_of(pieces) == screen_of([TEXT])


def test_a_block_higher_than_the_screen_is_there_in_the_end() -> None:
    text = "```\n" + "\n".join(f"line {n}" for n in range(100)) + "\n```"
    shown = screen_of([text[at : at + 20] for at in range(0, len(text), 20)], height=12)
    assert [line.strip() for line in shown] == [f"line {n}" for n in range(100)]


def test_terminals_obey_nothing_in_it() -> None:
    out = io.StringIO()
    with AnswerView(Console(file=out, force_terminal=True, width=80, color_system=None)) as answer:
        for piece in ("a\x1b", "]0;title\x07 b\x9b31m", "\x1b[2J \u202e c"):
            answer.add(piece)
        answer.think("\x1b[2J")
        answer.note("-> tool('\x1b[2J')\r")
    assert "\x1b]0" not in out.getvalue()
    assert "\x9b" not in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()
    assert "\u202e" not in out.getvalue()
    assert "\\x1b[2J" in out.getvalue()


def test_terminals_obey_nothing_that_is_spelled_as_an_entity() -> None:
    out = io.StringIO()
    with AnswerView(Console(file=out, force_terminal=True, width=80, color_system=None)) as answer:
        answer.add(
            "a &#8238; b &rlm; c **&#8203;** d `&amp;`\n\n- &#x2028; e &lt;\n\n"
            "| &#xE0041; | f |\n|-|-|\n| 1 | &#8238; |\n"
        )
    assert not set("\u202e\u200f\u200b\u2028\U000e0041") & set(out.getvalue())
    assert "e <" in out.getvalue()
    assert "&amp;" in out.getvalue()


def test_where_nobody_looks_it_is_plain_text() -> None:
    out = io.StringIO()
    with AnswerView(Console(file=out, width=40)) as answer:
        answer.add("Some **text** that is longer than forty characters are.\n\n- a\n")
    assert out.getvalue() == "Some **text** that is longer than forty characters are.\n\n- a\n"
