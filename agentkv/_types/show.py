"""Values as error messages show them."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60


def preview(value: object) -> str:
    """The type of a value and the beginning of its repr, at most 60 characters; a placeholder if `repr` raises. A class
    is shown by its name.
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    try:
        text = _REPR.repr(value)
    except Exception:
        text = "(which cannot be shown)"
    text = text if len(text) <= 60 else text[:57] + "..."
    kind = type(value).__name__
    return text if text.startswith(f"{kind}(") else f"{kind} {text}"


def bytes_text(n: int) -> str:
    """A number of bytes in B, KiB, MiB or GiB."""
    value = float(n)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{n} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def shortened(text: str) -> str:
    """The beginning of a text that anybody may have written, for one line of a message."""
    words = " ".join(text.split())
    return words if len(words) <= 200 else f"{words[:197]}..."


def reason_of(fault: ErrorDetails) -> str:
    """The reason of a fault that pydantic found, in a validator's own words where it raised."""
    return fault["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")


def spellable(text: str) -> str:
    """Replaces lone surrogates by `?`, as they have no tokens."""
    return str.encode(text, "utf-8", "replace").decode()


def safe_str(error: BaseException) -> str:
    """The message of an exception, with lone surrogates as `?`; a placeholder if its `__str__` raises."""
    try:
        return spellable(str(error))
    except Exception:
        return "(which cannot be shown)"
