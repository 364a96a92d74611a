"""What a person types while no prompt is there to read it."""

from __future__ import annotations

import os
import select
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyPress

MOST_BYTES = 1 << 16


@contextmanager
def typed_ahead(source: Input) -> Iterator[None]:
    """Keys that are pressed in the block wait unseen for the next prompt of `source`, but for Ctrl-C and Ctrl-Z."""
    fd = source.fileno()
    before = termios.tcgetattr(fd)
    raw = termios.tcgetattr(fd)
    raw[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(fd, termios.TCSANOW, raw)
    try:
        yield
    finally:
        store_typeahead(source, _pressed(fd))
        termios.tcsetattr(fd, termios.TCSANOW, before)


async def says_yes(ask: Callable[[], None]) -> bool:
    """Is the next key a `y`, once `ask` showed a question? What was typed before it is no answer, and is dropped."""
    termios.tcflush(sys.stdin, termios.TCIFLUSH)
    ask()
    await anyio.wait_readable(sys.stdin)
    return os.read(sys.stdin.fileno(), MOST_BYTES) in (b"y", b"Y")


def _pressed(fd: int) -> list[KeyPress]:
    keys: list[KeyPress] = []
    parser = Vt100Parser(keys.append)
    while select.select([fd], [], [], 0)[0] and (read := os.read(fd, MOST_BYTES)):
        parser.feed(read.decode(errors="replace").replace("\n", "\r"))  # as a prompt has Enter
    parser.flush()
    return keys
