"""Notes for users who open or export a model, about things that are no errors: logged, and passed to a listener."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["note", "shown_by"]

_log = logging.getLogger("agentkv")
_listener: ContextVar[Callable[[str], None] | None] = ContextVar("agentkv_notes", default=None)


def note(sentence: str) -> None:
    """Logs a warning with the logger "agentkv", and passes it to the listener of `shown_by`."""
    _log.warning(sentence)
    listener = _listener.get()
    if listener is not None:
        listener(sentence)


@contextmanager
def shown_by(listener: Callable[[str], None]) -> Iterator[None]:
    """Passes every note of the block to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
