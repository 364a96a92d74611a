"""Text of unknown origin, made fit for a terminal and for error messages."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["path_text", "printable"]


def printable(text: object) -> str:
    """`text` with every character that a terminal would interpret or not show escaped as in a Python literal.

    These are control and formatting characters, line breaks included, and characters without a UTF-8 form.
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def path_text(path: str | Path) -> str:
    """A path as text; bytes that are no UTF-8 are escaped as in a Python literal."""
    return os.fsencode(path).decode(errors="backslashreplace")
