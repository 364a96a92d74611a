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


def said(error: BaseException) -> str:
    """What an exception says, whatever its `__str__` does; lone surrogates, which no token spells, as `?`."""
    try:
        return str(error).encode("utf-8", "replace").decode()
    except Exception:
        return "(which cannot be shown)"
