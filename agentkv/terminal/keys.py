"""Keys typed while no prompt reads them."""

from __future__ import annotations

import os
import re
import select
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress

import anyio
from anyio.abc import TaskGroup
from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import clear_typeahead, store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.output import Output

from .._aio.tasks import FirstErrorGroup
from .._types.errors import InvalidInput

MOST_BYTES = 1 << 16
MOST_SHOWN = 60  # bytes
PASTE_SECONDS = 2.0  # from one part of a paste to the next, at most
_SEQUENCE = re.compile(r"\x1b(\[[0-9;]*[A-Za-z~]|.)?")  # escape sequences of keys such as arrows
_LINE = re.compile(rb"([^\x00-\x07\x09-\x1f]*)[\r\n]")  # of letters and corrections, and Enter
_PASTE_BEGINS, _PASTE_ENDS = b"\x1b[200~", b"\x1b[201~"


def check_keys() -> None:
    """Raises InvalidInput on a system whose terminals are not read key by key."""
    try:
        import termios  # noqa: F401
    except ImportError as error:
        raise InvalidInput(
            "this system has no termios, by which the keys of a terminal are read; give a pipe or a file as stdin, or "
            "use Linux, macOS or WSL"
        ) from error


class TypedAhead:
    """Input typed while something else is shown; it goes to the next prompt of `source`, and can be shown meanwhile.

    Typed keys keep their meaning: Enter sends. A paste is text with all its line ends, and waits for Enter. Input is
    read as it comes, so that a Ctrl-C behind it takes effect. Inside `lines_to`, whole lines are handed on at once,
    until one comes that only a prompt can take: a command, a paste, or one with other keys in it.
    """

    def __init__(self, source: Input, output: Output) -> None:
        self._source = source
        self._output = output
        self._typed = b""
        self._key = anyio.Event()
        self._takes_line: Callable[[str], bool] | None = None
        self.changed: Callable[[], None] = lambda: None  # called when `shown` has changed

    @property
    def shown(self) -> str:
        """End of the input, as one line."""
        text = _SEQUENCE.sub("", self._typed[-MOST_SHOWN:].decode(errors="replace"))
        return " ".join(text.split())

    @asynccontextmanager
    async def reading(self, group: TaskGroup | FirstErrorGroup) -> AsyncIterator[None]:
        """Collects input for the length of a block inside `key_by_key`; Ctrl-C and Ctrl-Z still work."""
        fd = self._source.fileno()
        self._paste(on=True)
        scope, over = anyio.CancelScope(), anyio.Event()
        group.start_soon(self._read, fd, scope, over)
        try:
            yield
        finally:
            scope.cancel()
            with anyio.CancelScope(shield=True):
                await over.wait()
            self._typed += _waiting(fd, self._typed)
            store_typeahead(self._source, _pressed(self._typed))
            self._typed = b""
            self._paste(on=False)

    @contextmanager
    def lines_to(self, takes: Callable[[str], bool]) -> Iterator[None]:
        """Hands lines on for the length of a block. `takes` returns False for a line that the next prompt is to get."""
        self._takes_line = takes
        self._hand_on()
        try:
            yield
        finally:
            self._takes_line = None

    def give_back(self, lines: Sequence[str]) -> None:
        """Has the next prompt get lines that were handed on, before all else."""
        self._typed = "".join(f"{line}\n" for line in lines).encode() + self._typed

    def drop(self) -> None:
        """Discards pending input, including the rest of a paste."""
        fd = self._source.fileno()
        self._typed += _waiting(fd, self._typed)
        self._typed = b""
        clear_typeahead(self._source)
        self.changed()

    async def says_yes(self, ask: Callable[[], None]) -> bool:
        """Discards earlier input, shows a question by `ask`, and returns whether the next key is `y`."""
        self.drop()
        self._key = anyio.Event()
        takes, self._takes_line = self._takes_line, None
        try:
            ask()
            await self._key.wait()
            answer, self._typed = self._typed, b""
        finally:
            self._takes_line = takes
        return answer in (b"y", b"Y")

    async def _read(self, fd: int, scope: anyio.CancelScope, over: anyio.Event) -> None:
        try:
            with scope:
                while True:
                    await anyio.wait_readable(fd)
                    if not (read := os.read(fd, MOST_BYTES)):
                        return
                    self._typed += read
                    self._key.set()
                    self._hand_on()
                    self.changed()
        finally:
            over.set()

    def _hand_on(self) -> None:
        while self._takes_line is not None and (match := _LINE.match(self._typed)):
            line = _corrected(match[1].decode(errors="replace")).strip()
            if line.startswith("/") or (line and not self._takes_line(line)):
                return
            self._typed = self._typed[match.end() :]

    def _paste(self, on: bool) -> None:
        """Turns bracketed paste on or off."""
        (self._output.enable_bracketed_paste if on else self._output.disable_bracketed_paste)()
        self._output.flush()


@contextmanager
def key_by_key(source: Input) -> Iterator[None]:
    """Has the terminal pass on each key as it is typed, without echo, for the length of a block: in the moments between
    two prompts, too, in which a Ctrl-D would be read as a Ctrl-@ otherwise."""
    import termios  # no module of Windows: see `check_keys`

    fd = source.fileno()
    before = termios.tcgetattr(fd)
    raw = termios.tcgetattr(fd)
    raw[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(fd, termios.TCSANOW, raw)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(fd, termios.TCSANOW, before)


def keep_lines(source: Input) -> None:
    """Passes input from before `key_by_key` on to the next prompt of `source`."""
    typed = _waiting(source.fileno())
    store_typeahead(source, _pressed(typed.replace(b"\0", b"\x04")))  # as terminals keep Ctrl-D in lines


def _waiting(fd: int, before: bytes = b"") -> bytes:
    """Reads the pending input behind `before`. Terminals deliver input in parts that may end anywhere, so an open paste
    is awaited."""
    typed = b""
    while select.select([fd], [], [], PASTE_SECONDS if _in_paste(before + typed) else 0)[0]:
        if not (read := os.read(fd, MOST_BYTES)):
            break
        typed += read
    return typed


def _corrected(line: str) -> str:
    """A line as it is once its backspaces have done their work."""
    kept: list[str] = []
    for letter in line:
        if letter not in "\x08\x7f":
            kept.append(letter)
        elif kept:
            kept.pop()
    return "".join(kept)


def _in_paste(typed: bytes) -> bool:
    return typed.rfind(_PASTE_BEGINS) > typed.rfind(_PASTE_ENDS)


def _pressed(typed: bytes) -> list[KeyPress]:
    keys: list[KeyPress] = []
    parser = Vt100Parser(keys.append)
    ended = typed + _PASTE_ENDS if _in_paste(typed) else typed
    parser.feed(ended.decode(errors="replace").replace("\n", "\r"))  # as a prompt has Enter
    parser.flush()
    return keys
