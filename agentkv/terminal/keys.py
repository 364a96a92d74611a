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
        store_typeahead(source, _pressed(_waiting(fd)))
        termios.tcsetattr(fd, termios.TCSANOW, before)


def keep_lines(source: Input) -> None:
    """What was entered before there was any prompt waits for the next one of `source`."""
    fd = source.fileno()
    before = termios.tcgetattr(fd)
    raw = termios.tcgetattr(fd)
    raw[3] &= ~termios.ICANON  # a line that is not ended yet is to be had then
    termios.tcsetattr(fd, termios.TCSANOW, raw)
    store_typeahead(source, _pressed(_waiting(fd).replace(b"\0", b"\x04")))  # as terminals keep Ctrl-D in lines
    termios.tcsetattr(fd, termios.TCSANOW, before)


async def says_yes(ask: Callable[[], None]) -> bool:
    """Is the next key a `y`, once `ask` showed a question? What was typed before it is no answer, and is dropped."""
    termios.tcflush(sys.stdin, termios.TCIFLUSH)
    ask()
    await anyio.wait_readable(sys.stdin)
    return os.read(sys.stdin.fileno(), MOST_BYTES) in (b"y", b"Y")


def _waiting(fd: int) -> bytes:
    """What was typed: a terminal hands out some of it at a time, which may end anywhere."""
    typed = b""
    while select.select([fd], [], [], 0)[0] and (read := os.read(fd, MOST_BYTES)):
        typed += read
    return typed


def _pressed(typed: bytes) -> list[KeyPress]:
    keys: list[KeyPress] = []
    parser = Vt100Parser(keys.append)
    parser.feed(typed.decode(errors="replace").replace("\n", "\r"))  # as a prompt has Enter
    parser.flush()
    return keys
