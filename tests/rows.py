"""Tables of which `make test` runs some rows and `make soak` all: where each is seconds of the same code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest


def one_in(n: int, rows: Iterable[Any]) -> Iterator[Any]:
    """The rows of a `parametrize`, in order; all but the first of each `n` are soak."""
    for index, row in enumerate(rows):
        values = row if isinstance(row, tuple) else (row,)
        yield pytest.param(*values, marks=pytest.mark.soak) if index % n else row
