"""Rendering of an answer in progress: markdown, drawn block by block."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from agentkv_runtime.folder.printable import printable
from markdown_it import MarkdownIt
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

REDRAWN_S = 0.06  # minimum seconds between two redraws of the last block


class AnswerView:
    """Shows a growing text for the length of a `with` block. Complete blocks (a paragraph, a list, code) are printed
    for good; only the last one is redrawn as it grows, so that scrolled text is never touched.

    `below` returns the text of a status line under the growing block.
    """

    def __init__(self, console: Console, below: Callable[[], str] | None = None) -> None:
        self._console = console
        self._below = below
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._open = ""
        self._thought = False  # whether the open block is reasoning
        self._drawn = 0.0
        self._parser = MarkdownIt().enable("table")

    def __enter__(self) -> AnswerView:
        self._live.start()
        self.draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._below = None
        self._end_part()
        self._live.stop()

    def add(self, text: str) -> None:
        """Appends text of the answer."""
        self._grow(text, thought=False)

    def think(self, text: str) -> None:
        """Appends text of the reasoning."""
        self._grow(text, thought=True)

    def _grow(self, text: str, thought: bool) -> None:
        if thought != self._thought:
            self._end_part()
            self._thought = thought
        self._open += _shown(text)
        now = time.monotonic()
        if self._console.is_terminal and now - self._drawn >= REDRAWN_S:
            self._drawn = now
            self._draw()

    def draw(self) -> None:
        """Redraws the last block and the status line."""
        if self._console.is_terminal:
            self._draw()

    def note(self, text: str) -> None:
        """Prints lines of their own behind the text so far; all but the first are indented."""
        self._end_part()
        lines = _shown(text.rstrip("\n")).replace("\n", "\n   ")
        self._console.print(Text(lines, "dim"), soft_wrap=not self._console.is_terminal)

    def _draw(self) -> None:
        lines = self._open.splitlines(keepends=True)
        blocks = [token.map[0] for token in self._parser.parse(self._open) if token.level == 0 and token.map]
        last = blocks[-1] if blocks else 0
        if last:
            self._flush("".join(lines[:last]))
            self._open = "".join(lines[last:])
        self._update(self._growing())

    def _update(self, growing: RenderableType) -> None:
        if self._below is not None and self._console.is_terminal:
            below = Text(printable(self._below()), "dim", no_wrap=True, overflow="ellipsis")
            growing = Group(growing, below)
        self._live.update(growing, refresh=True)

    def _growing(self) -> Markdown | Text:
        """Renderable of the last block, or its end if it is taller than the screen."""
        room = max(self._console.height - 3, 1)
        lines = self._open.splitlines()
        wrapped = sum(1 + len(line) // max(self._console.width, 1) for line in lines)
        return self._styled(self._open) if wrapped < room else Text("\n".join(lines[-room // 2 :]))

    def _end_part(self) -> None:
        self._flush(self._open)
        self._open = ""

    def _flush(self, text: str) -> None:
        self._update(Text(""))
        if text.strip():
            self._console.print(self._styled(text), soft_wrap=not self._console.is_terminal)

    def _styled(self, text: str) -> Markdown | Text:
        if self._thought:
            return Text(text.strip(), "dim italic")
        return _markdown(text) if self._console.is_terminal else Text(text.strip("\n"))


def _markdown(text: str) -> Markdown:
    """Parses markdown and replaces control characters, those of entities such as `&#8238;` included."""
    drawn = Markdown(text)
    for block in drawn.parsed:
        for token in (block, *(block.children or ())):
            token.content = _shown(token.content)
    return drawn


def _shown(text: str) -> str:
    """Replaces characters that a terminal would interpret."""
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.split("\n"))
