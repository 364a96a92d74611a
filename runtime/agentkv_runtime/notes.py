"""What somebody who opens or exports a model should know though nothing failed: logged, and shown where one listens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["note", "shown_by"]

_log = logging.getLogger("agentkv")
_listener: ContextVar[Callable[[str], None] | None] = ContextVar("agentkv_notes", default=None)


def note(sentence: str) -> None:
    """Says so, as a warning of the logger "agentkv" and to whoever listens."""
    _log.warning(sentence)
    listener = _listener.get()
    if listener is not None:
        listener(sentence)


@contextmanager
def shown_by(listener: Callable[[str], None]) -> Iterator[None]:
    """In the block, `listener` gets every note."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
