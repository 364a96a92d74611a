"""What patterns are given, looked at before anything is forked."""

from __future__ import annotations

import sys

from .._branch import Branch
from .._errors import InvalidInput
from .._inputs import checked_count
from .._shown import shown

MOST = 2**31 - 1


def check(trunk: object, timeout: object = None, *, counts: dict[str, int] | None = None, **functions: object) -> None:
    """Raises InvalidInput for what is no branch, no time, less than one of something, or cannot be called."""
    if not isinstance(trunk, Branch):
        raise InvalidInput(f"trunk is {shown(trunk)}, but it must be a Branch")
    if timeout is not None and not (
        isinstance(timeout, int | float) and not isinstance(timeout, bool) and 0 < timeout <= sys.float_info.max
    ):
        raise InvalidInput(f"timeout is {shown(timeout)}, but it must be None or a number of seconds above 0")
    for name, count in (counts or {}).items():
        checked_count(count, name, 1, MOST)
    for name, function in functions.items():
        if not callable(function):
            raise InvalidInput(f"{name} is {shown(function)}, but it must be a function")
