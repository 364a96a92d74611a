"""How many forwards something takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .._context.context import Context


class ForwardCount:
    """Counts from where its block began; afterwards what it came to there."""

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
        """Forwards of the model, of all branches together."""
        self._now()
        return self._end.forwards - self._start.forwards

    @property
    def generated(self) -> int:
        """Tokens that were generated, on all branches together."""
        self._now()
        return self._end.generated - self._start.generated

    def stop(self) -> None:
        """The block is over."""
        self._now()
        self._over = True


@contextmanager
def count_forwards(context: Context) -> Iterator[ForwardCount]:
    """`with kv.testing.count_forwards(ctx) as count: ...`; then `count.forwards`."""
    count = ForwardCount(context)
    try:
        yield count
    finally:
        count.stop()
