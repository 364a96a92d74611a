"""Arrays of token ids."""

from __future__ import annotations

from array import array

import numpy as np


def common_prefix(one: array[int] | memoryview, other: array[int] | memoryview) -> int:
    """Number of int32 tokens that two logs begin with in common."""
    least = min(len(one), len(other))
    differ = np.flatnonzero(np.frombuffer(one, np.int32)[:least] != np.frombuffer(other, np.int32)[:least])
    return int(differ[0]) if differ.size else least
