"""Counts of forwards within a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .._context.context import Context


class ForwardCount:
    """Counts since its block began; after the block, the counts at its end."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._start = context.stats
        self._end = self._start
        self._over = False

    def _now(self) -> None:
        if not self._over:
            self._end = self._context.stats

    @property
    def forwards(self) -> int:
        """Number of forwards of the model, for all branches together."""
        self._now()
        return self._end.forwards - self._start.forwards

    @property
    def generated(self) -> int:
        """Number of tokens generated, on all branches together."""
        self._now()
        return self._end.generated - self._start.generated

    def stop(self) -> None:
        """Ends the count."""
        self._now()
        self._over = True


@contextmanager
def count_forwards(context: Context) -> Iterator[ForwardCount]:
    """Counts the forwards of a block: `with kv.testing.count_forwards(ctx) as count: ...`; then `count.forwards`."""
    count = ForwardCount(context)
    try:
        yield count
    finally:
        count.stop()
