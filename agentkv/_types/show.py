"""Values as error messages show them."""

from __future__ import annotations

import reprlib

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60


def preview(value: object) -> str:
    """The type of a value and the beginning of its repr, at most 60 characters; a placeholder if `repr` raises."""
    try:
        text = _REPR.repr(value)
    except Exception:
        text = "(which cannot be shown)"
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def safe_str(error: BaseException) -> str:
    """The message of an exception, with lone surrogates as `?`; a placeholder if its `__str__` raises."""
    try:
        return str(error).encode("utf-8", "replace").decode()
    except Exception:
        return "(which cannot be shown)"
