"""Text of unknown origin, made fit for a terminal and for error messages."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

__all__ = ["path_text", "printable", "some_names"]


def printable(text: object) -> str:
    """`text` with every character that a terminal would interpret or not show escaped as in a Python literal.

    These are control and formatting characters, line breaks included, and characters without a UTF-8 form.
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def path_text(path: str | Path) -> str:
    """A path as text; bytes that are no UTF-8 are escaped as in a Python literal."""
    return os.fsencode(path).decode(errors="backslashreplace")


def some_names(names: Collection[str]) -> str:
    """The first four names in alphabetical order, and how many more there are."""
    return printable(", ".join(sorted(names)[:4])) + (f", and {len(names) - 4} more" if len(names) > 4 else "")
