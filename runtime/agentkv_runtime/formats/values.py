"""Values that messages can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["check_value"]

_DEEPEST = 48  # levels of arguments: messages hold somewhat more, and have some of their own


def check_value(value: object, depth: int = 0) -> None:
    """Raises ValueError for a value that messages cannot contain or templates cannot write."""
    match value:
        case str():
            _check_text(value)
        case None | bool():
            pass
        case int():
            str(value)  # raises for one of more digits than anybody writes
        case float():
            if not math.isfinite(value):
                raise ValueError("JSON has no such number")
        case Mapping() | list() if depth == _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} levels deep")
        case Mapping():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ValueError(f"the key {key!r} is no str")
                _check_text(key)
                check_value(item, depth + 1)
        case list():
            for item in value:
                check_value(item, depth + 1)
        case _:
            raise ValueError(f"JSON has no {type(value).__name__}")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is no character") from None
