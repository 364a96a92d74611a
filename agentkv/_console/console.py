"""Output streams of commands, error exits, tables."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import typer
from agentkv_runtime.folder.printable import printable
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .._types.errors import AgentKVError

stdout = Console(emoji=False)
stderr = Console(stderr=True, emoji=False)


def ago_text(then: float) -> str:
    """The time since a Unix time, in its largest unit."""
    seconds = max(0.0, time.time() - then)
    for length, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def fail(message: object) -> NoReturn:
    """Prints an error on one line and exits with status 1."""
    line = " ".join(part.strip() for part in str(message).splitlines())
    stderr.print(f"[bold red]error:[/] {escaped(line)}", soft_wrap=True)
    raise typer.Exit(1)


@contextmanager
def reporting() -> Iterator[None]:
    """Turns the errors that a command may raise into one line on stderr and exit status 1."""
    from agentkv_runtime.errors import (
        ExportError,
        ModelFolderError,
        PullError,
        QualityError,
        StoreError,
        TokenizerError,
    )

    refusals = (
        AgentKVError,
        ExportError,
        ModelFolderError,
        PullError,
        QualityError,
        StoreError,
        TokenizerError,
    )

    try:
        yield
    except (*refusals, ImportError) as error:  # of a backend or an extra that is not installed
        fail(error)
    except BrokenPipeError:  # the reader of the output is gone
        raise
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else error)
    except MemoryError:
        fail("out of memory; close other programs, or take a smaller model")


def write_file(path: Path, content: bytes) -> None:
    """Replaces a file as a whole, or leaves it as it was; a pipe or a device is written to. Raises OSError."""
    from agentkv_runtime.folder.fresh_file import put_in_place

    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            put_in_place(path, content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # a full disk names no file


@contextmanager
def remembered_interrupts() -> Iterator[Callable[[], None]]:
    """Yields a check that raises KeyboardInterrupt again once there was one: imports of large libraries swallow some.

    One that is raised in a finalizer, where Python would print it and go on, counts as well and is not printed.
    """
    before, unraisable = signal.getsignal(signal.SIGINT), sys.unraisablehook
    seen = False

    def tell(lost: Any) -> None:
        if not isinstance(lost.exc_value, KeyboardInterrupt):
            unraisable(lost)

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen = True
        raise KeyboardInterrupt

    def check() -> None:
        if seen:
            raise KeyboardInterrupt

    if before is signal.default_int_handler:  # another handler stays
        signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = tell
    try:
        yield check
    finally:
        sys.unraisablehook = unraisable
        signal.signal(signal.SIGINT, before)


def escaped(text: object) -> str:
    """Escapes text of unknown origin for rich: no markup or control sequence in it takes effect."""
    return escape(printable(text))


def print_rows(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Prints a table as wide as the terminal. Elsewhere prints one line per row, for programs to parse."""
    if not stdout.is_terminal:
        width = max(len(name) for name, _ in rows)
        lines = [title, *(f" {name:<{width}}  {value}".rstrip() for name, value in rows)]
        stdout.print("\n".join(map(printable, lines)), soft_wrap=True, markup=False, highlight=False)
        return
    table = Table(show_header=False, title=escaped(title), title_justify="left", box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, escaped(value))
    stdout.print(table)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], words: Collection[str] = ()) -> None:
    """Prints a table within the terminal's width. Its first column has names, those of `words` texts, and all others
    numbers; an empty title is not printed.

    Elsewhere prints one line per row, for programs to parse.
    """
    left = [not number or column in words for number, column in enumerate(columns)]
    if stdout.is_terminal:
        table = Table(title=escaped(title) or None, title_justify="left", box=None, header_style="bold")
        for column, is_left in zip(columns, left, strict=True):
            table.add_column(column, overflow="fold", justify="left" if is_left else "right")
        for row in rows:
            table.add_row(*map(escaped, row))
        stdout.print(table)
        return
    every = [columns, *rows]
    widths = [max(len(row[at]) for row in every) for at in range(len(columns))]
    sides = ["<" if is_left else ">" for is_left in left]
    lines = [
        " " + "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in every
    ]
    stdout.print("\n".join(map(printable, [title, *lines][not title :])), soft_wrap=True, markup=False, highlight=False)
