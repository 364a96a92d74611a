"""Tables of which `make test` runs some rows and `make soak` all: where each is seconds of the same code."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def in_turn(first: Sequence[Any], second: Sequence[Any]) -> list[ParameterSet]:
    """The pairs of a `parametrize` of two names: each of `first` with one of `second`, in turn; the others are soak."""
    return [
        _soak_unless(place == index % len(second), pytest.param(one, other))
        for index, one in enumerate(first)
        for place, other in enumerate(second)
    ]


def one_in(n: int, rows: Iterable[Any]) -> list[ParameterSet]:
    """The rows of a `parametrize`, in order: of those that are not soak, all but the first of each `n` become it."""
    places = itertools.count()
    return [row if row.marks else _soak_unless(next(places) % n == 0, row) for row in map(_row, rows)]


def _row(row: Any) -> ParameterSet:
    return row if isinstance(row, ParameterSet) else pytest.param(*(row if isinstance(row, tuple) else (row,)))


def _soak_unless(runs: bool, row: ParameterSet) -> ParameterSet:
    return row if runs else row._replace(marks=[pytest.mark.soak])
