"""Confidence interval of a proportion."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist


def wilson(right: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval (1927) of the proportion `right` of `n`: its ends, 0 to 1.

    Without cases it is the whole range.
    """
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, weight = right / n, 1 + z * z / n
    middle = (share + z * z / (2 * n)) / weight
    half = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / weight
    return max(0.0, middle - half), min(1.0, middle + half)
