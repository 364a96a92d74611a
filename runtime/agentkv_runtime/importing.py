"""Imports of large libraries."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["few_collections"]

_NEW_OBJECTS = 50_000


@contextmanager
def few_collections() -> Iterator[None]:
    """Looks for cycles only after each 50,000 new objects.

    Modules make many objects that stay and few cycles: imports inside are up to a quarter faster. Other work leaves
    cycles that hold whole requests or weights, and must not be inside.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
