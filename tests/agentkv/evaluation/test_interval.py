"""Wilson's interval, against scipy's."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from agentkv.evaluation.interval import wilson


@pytest.mark.parametrize(("right", "n"), [(0, 1), (1, 1), (0, 25), (25, 25), (9, 12), (50, 100), (1, 1000)])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_it_is_what_scipy_says(right: int, n: int, confidence: float) -> None:
    theirs = binomtest(right, n).proportion_ci(confidence, method="wilson")
    assert wilson(right, n, confidence) == pytest.approx((theirs.low, theirs.high))


def test_nothing_tells_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
