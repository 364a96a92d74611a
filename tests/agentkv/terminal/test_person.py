"""The terminal of the tests is one as people have it."""

from __future__ import annotations

import pyte
import pytest

from .person import Terminal

LINES = [str(number) for number in range(12)]


def shown(terminal: Terminal) -> list[str]:
    return [line.rstrip() for line in terminal.display]


@pytest.mark.parametrize(
    ("up", "rows", "kept", "row"),
    [
        (0, 5, LINES[7:], 5),  # the cursor is below all
        (11, 5, LINES[:5], 1),  # it is above all: what is below goes
        (4, 5, LINES[3:8], 5),
        (4, 20, LINES, 8),
        (0, 1, LINES[-1:], 1),
    ],
)
def test_a_window_that_gets_another_size_keeps_its_cursor_in_sight(
    up: int, rows: int, kept: list[str], row: int
) -> None:
    answers: list[str] = []
    terminal = Terminal(40, 12, answers.append)
    bytes_ = pyte.ByteStream(terminal)
    bytes_.feed(("\r\n".join(LINES) + (f"\x1b[{up}A" if up else "")).encode())
    terminal.resize(rows, 2)
    bytes_.feed(b"\x1b[6")
    bytes_.feed(b"n")
    assert [line for line in shown(terminal) if line] == kept
    assert answers == [f"\x1b[{row};2R"]


def test_what_scrolls_away_when_a_window_shrinks_is_kept() -> None:
    terminal = Terminal(40, 12, lambda data: None)
    pyte.ByteStream(terminal).feed("\r\n".join(LINES).encode())
    terminal.resize(5, 40)
    assert ["".join(line[x].data for x in range(40)).rstrip() for line in terminal.history.top] == LINES[:7]
