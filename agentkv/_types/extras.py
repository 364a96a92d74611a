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
    except ModuleNotFoundError as error:
        advice = f"{error.name} is not installed: pip install 'agentkv-sdk[{extra}]'"
        raise ModuleNotFoundError(advice, name=error.name, path=error.path) from error
    except ImportError as error:
        raise ImportError(f"{error}; pip install 'agentkv-sdk[{extra}]'", name=error.name, path=error.path) from error
