"""Imports of packages that an optional extra brings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["needs_extra"]


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Wraps imports of packages of an extra. Raises ImportError with the way to install it."""
    try:
        yield
    except ImportError as error:
        advice = f"pip install 'agentkv-sdk[{extra}]'"
        if advice in str(error):  # of a module that says it itself
            raise
        kind = ModuleNotFoundError if isinstance(error, ModuleNotFoundError) else ImportError
        is_named = kind is ModuleNotFoundError and error.name is not None
        told = f"{error.name} is not installed: {advice}" if is_named else f"{error}; {advice}"
        raise kind(told, name=error.name, path=error.path) from error
