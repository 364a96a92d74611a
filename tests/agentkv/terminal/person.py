"""A person at a terminal: what they type goes through a pseudo-terminal, and they read the screen."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte

from tests.waiting import SOON, until_sync

_PIECES = 200  # of what a program writes, which are read at once
_BRACKETED_PASTE = 2004 << 5  # as pyte counts private modes
CTRL_C, CTRL_D, CTRL_Z, ALT_ENTER = "\x03", "\x04", "\x1a", "\x1b\r"


class Terminal(pyte.HistoryScreen):
    """A screen as terminals have it: one that shrinks keeps its cursor in sight, and what it asked is answered."""

    def __init__(self, columns: int, rows: int, answer: Callable[[str], object]) -> None:
        super().__init__(columns, rows, history=20_000)
        self._answer = answer

    def write_process_input(self, data: str) -> None:
        """Tells the program what it asked for, such as where the cursor is."""
        self._answer(data)

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        """Scrolls until the cursor is within, and cuts what is below; pyte cuts the top and leaves the cursor."""
        lines, columns = lines or self.lines, columns or self.columns
        x, y = self.cursor.x, self.cursor.y
        scrolled, cut = max(y + 1 - lines, 0), max(self.lines - lines, 0)
        self.cursor_position(self.lines, 1)
        for _ in range(scrolled):
            self.index()
        if cut:
            self.cursor_position(1, 1)
            self.insert_lines(cut)  # pushes as many out below as pyte is about to cut above
        super().resize(lines, columns)
        self.cursor_position(y - scrolled + 1, min(x, columns - 1) + 1)


class Person:
    """Talks to `agentkv chat`. A screen of 100 by 30 at first; `disk_is_full` lets it write to no file."""

    def __init__(self, home: Path, *options: str, disk_is_full: bool = False) -> None:
        self._screen = Terminal(100, 30, lambda data: self.process.send(data))
        self._bytes = pyte.ByteStream(self._screen)
        self.process = pexpect.spawn(
            sys.executable,
            ["-m", "agentkv", "chat", "--threads", "1", *options],
            dimensions=(30, 100),
            env={**os.environ, "AGENTKV_HOME": str(home), "TERM": "xterm-256color"},
            preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))) if disk_is_full else None,
        )

    @property
    def lines(self) -> list[str]:
        """What is on the screen."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        """All that was shown, what has scrolled away included."""
        gone = ["".join(line[x].data for x in range(self._screen.columns)) for line in self._screen.history.top]
        return "\n".join([*(line.rstrip() for line in gone), *self.lines])

    def type(self, text: str) -> None:
        """Keys, as they are."""
        while text:  # a terminal takes some kilobytes at a time
            self.process.send(text[:512])
            text = text[512:]
            self.look(0)

    def say(self, line: str) -> None:
        """A line, and Enter."""
        self.type(line + "\r")

    def paste(self, text: str) -> None:
        """As terminals do: told from what is typed where the program asks for that, else line by line."""
        self.look(0)
        told = _BRACKETED_PASTE in self._screen.mode
        self.type(f"\x1b[200~{text}\x1b[201~" if told else text.replace("\n", "\r"))

    def resize(self, rows: int, columns: int) -> None:
        """The window gets another size."""
        self.process.setwinsize(rows, columns)
        self._screen.resize(rows, columns)

    def look(self, seconds: float = SOON) -> None:
        """Reads until nothing comes for so many seconds, or much has come."""
        for _ in range(_PIECES):
            try:
                data = self.process.read_nonblocking(1 << 16, seconds)
            except (pexpect.TIMEOUT, pexpect.EOF):
                return
            self._bytes.feed(data)

    def until(self, holds: Callable[[], object]) -> None:
        """Reads until it holds."""
        try:
            until_sync(holds, self.look)
        except TimeoutError as error:
            raise AssertionError("it did not come; the screen:\n" + "\n".join(self.lines)) from error

    def sees(self, text: str) -> None:
        """Reads until a text is there."""
        self.until(lambda: text in self.text)

    def prompted(self) -> None:
        """Reads until an empty prompt waits."""
        self.until(lambda: self.is_prompted)

    def asks(self, line: str, said: str) -> None:
        """A line at an empty prompt; reads until a text is there once more: an earlier line may have said the same."""
        self.prompted()
        before = self.text.count(said)
        self.say(line)
        self.until(lambda: self.text.count(said) > before)

    @property
    def is_prompted(self) -> bool:
        """Is the last line above the toolbar an empty prompt?"""
        shown = [line for line in self.lines if line and not re.match(r" \S+ \| ", line)]
        return bool(shown) and shown[-1] == ">"

    def dies(self) -> None:
        """Whatever it does, it is gone."""
        if self.process.isalive():
            self.process.kill(signal.SIGKILL)
            self.process.wait()
        self.process.close()

    def ends(self) -> int:
        """Reads until it has left; its status."""
        self.until(lambda: not self.process.isalive())
        self.process.close()
        return self.process.exitstatus if self.process.exitstatus is not None else -(self.process.signalstatus or 0)
