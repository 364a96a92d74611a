"""Arrays of token ids."""

from __future__ import annotations

from array import array

import numpy as np


def common_prefix(one: array[int] | memoryview, other: array[int] | memoryview) -> int:
    """Length of the common prefix of two int32 token logs."""
    least = min(len(one), len(other))
    differ = np.flatnonzero(np.frombuffer(one, np.int32)[:least] != np.frombuffer(other, np.int32)[:least])
    return int(differ[0]) if differ.size else least
