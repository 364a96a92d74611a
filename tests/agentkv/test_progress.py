"""What a terminal shows of an export."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from agentkv._console import progress

WIDTH = 80


class Terminal:
    """One of 80 columns, and a clock that goes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.console = Console(file=io.StringIO(), force_terminal=True, width=WIDTH, get_time=lambda: self.now)
        monkeypatch.setattr(progress, "stderr", self.console)
        self.display = progress.Display()

    def line(self) -> str:
        """The line as it stands."""
        paper = Console(file=io.StringIO(), width=WIDTH)
        with paper.capture() as shown:
            paper.print(self.display._steps.get_renderable())
        assert len(shown.get().splitlines()) == 1
        return shown.get().strip()


def test_the_time_that_remains_follows_from_the_share_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(monkeypatch)
    try:
        terminal.display.tell("loading torch")
        terminal.now += 3
        assert terminal.line().endswith("0:00:03")  # as long as nothing is known
        terminal.now += 7
        terminal.display.done(0.0)
        assert terminal.line().endswith("0:00:10")
        terminal.display.done(0.25)
        terminal.display.tell("lowering the program")
        assert "lowering the program" in terminal.line()
        assert terminal.line().endswith("about 0:00:30 left")
        terminal.now += 20  # and nothing new
        assert terminal.line().endswith("about 0:00:10 left")
        terminal.now += 30
        assert terminal.line().endswith("longer than it seemed")
        terminal.display.done(0.5)  # it took 60 seconds
        assert terminal.line().endswith("about 0:01:00 left")
    finally:
        terminal.display.stop()


def test_a_model_with_a_long_name_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(monkeypatch)
    try:
        terminal.display.tell("exporting Qwen3-30B-A3B-Instruct-2507-with-a-long-name-of-its-own: planning memory")
        terminal.now += 60
        terminal.display.done(0.5)
        assert terminal.line().endswith("about 0:01:00 left")
        assert "exporting Qwen3-30B" in terminal.line()
    finally:
        terminal.display.stop()


def test_where_there_is_no_terminal_only_notes_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=WIDTH)
    monkeypatch.setattr(progress, "stderr", console)
    display = progress.Display()
    display.received(1, 2)
    for step in ("loading torch", "lowering the program", "writing the folder"):
        display.tell(step)
        display.done(0.5)
    display.note("Another process exports the same model: waiting for it.")
    display.stop()
    display.stop()
    assert console.file.getvalue() == "Another process exports the same model: waiting for it.\n"
