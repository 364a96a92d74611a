"""Tables of which `make test` runs some rows and `make soak` all: where each is seconds of the same code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def in_turn(first: Sequence[Any], second: Sequence[Any]) -> list[ParameterSet]:
    """The pairs of a `parametrize` of two names: each of `first` with one of `second`, in turn; the others are soak."""
    return [
        _row((one, other), place != index % len(second))
        for index, one in enumerate(first)
        for place, other in enumerate(second)
    ]


def one_in(n: int, rows: Iterable[Any]) -> list[ParameterSet]:
    """The rows of a `parametrize`, in order; all but the first of each `n` are soak."""
    return [_row(row if isinstance(row, tuple) else (row,), index % n > 0) for index, row in enumerate(rows)]


def _row(values: tuple[Any, ...], is_soak: bool) -> ParameterSet:
    return pytest.param(*values, marks=[pytest.mark.soak] if is_soak else [])
