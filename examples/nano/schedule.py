"""Learning rates over a run, relative to their peak."""

from __future__ import annotations

import math


def cosine(done: float) -> float:
    """From 1 to a hundredth as `done` goes from 0 to 1, and level outside of that."""
    return 0.01 + 0.99 * (1 + math.cos(math.pi * max(0.0, min(1.0, done)))) / 2


def rise_and_fall(done: float, warmup: float, decay: float) -> float:
    """Rises until `warmup` and falls from `decay` on, both fractions of the run, as is `done`."""
    return done / warmup if done < warmup else cosine((done - decay) / (1 - decay))
