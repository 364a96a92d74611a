"""Sampling parameters are checked where they are made."""

from __future__ import annotations

from typing import Any

import pytest

import agentkv as kv


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": "hot"},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repetition_penalty": 0},
        {"seed": -1},
        {"seed": 2**63},
        {"seed": "x"},
    ],
)
def test_out_of_range_is_refused_by_name(bad: dict[str, Any]) -> None:
    with pytest.raises(kv.InvalidInput, match=next(iter(bad))):
        kv.Sampling(**bad)


def test_it_is_frozen_and_comparable() -> None:
    sampling = kv.Sampling(temperature=1, seed=3)
    assert sampling == kv.Sampling(temperature=1.0, seed=3)
    with pytest.raises(ValueError, match="frozen"):
        sampling.temperature = 2.0  # type: ignore[misc]


def test_a_seed_is_drawn_only_where_something_is_drawn() -> None:
    assert kv.Sampling().drawn_seed() is None
    assert kv.Sampling(seed=5).drawn_seed() == 5
    drawn = {kv.Sampling(temperature=1).drawn_seed() for _ in range(8)}
    assert len(drawn) == 8
    assert None not in drawn
