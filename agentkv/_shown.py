"""Values as error messages show them."""

from __future__ import annotations

import reprlib

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60


def shown(value: object) -> str:
    """The type of a value and the beginning of its repr, whatever that raises."""
    try:
        text = _REPR.repr(value)
    except Exception:
        text = "(which cannot be shown)"
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
