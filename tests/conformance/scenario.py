"""One course through everything that branches do, checked row by row against a model without a cache."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.driver import Driver, Logits
from tests.reference import Reference


@dataclass
class Checked:
    """Largest error so far, and over how many rows."""

    reference: Reference
    worst: float = 0.0
    rows: int = 0
    spread: list[float] = field(default_factory=list)

    def rows_of(self, log: Sequence[int], logits: Logits) -> None:
        """The last len(logits) rows of a sequence."""
        want = self.reference.logits(log)[-len(logits) :]
        self.worst = max(self.worst, float(np.abs(logits - want).max()))
        self.rows += len(logits)
        self.spread.append(float(want.std()))


def run_scenario(driver: Driver, reference: Reference, vocab: int, seed: int = 0) -> Checked:
    """Prefill in chunks, forks, decode together, mixed steps, rollbacks, holes; fits 160 cells and 48 rows a step."""
    rng = random.Random(seed)
    checked = Checked(reference)

    def tokens(n: int) -> list[int]:
        return [rng.randrange(3, vocab) for _ in range(n)]

    def advance(pieces: dict[int, list[int]], shuffle: bool = False) -> None:
        for seq, logits in driver.advance(pieces, rng if shuffle else None).items():
            checked.rows_of(driver.logs[seq], logits)

    trunk = tokens(29)
    checked.rows_of(trunk, driver.feed(0, trunk, [1, 7, 2, 11]))
    for child in (1, 2, 3):
        driver.fork(0, child)
    for _ in range(4):  # four branches decode in one step
        advance({seq: tokens(1) for seq in range(4)})
    # Another prompt prefills while three branches decode, its rows among theirs.
    advance({0: tokens(1), 4: tokens(21), 2: tokens(1), 3: tokens(1)}, shuffle=True)
    driver.rollback(2, 17)
    driver.rollback(3, 30)
    advance({2: tokens(5), 3: tokens(2), 0: tokens(1)}, shuffle=True)
    # A closed branch leaves holes, which the next sequence fills out of order.
    driver.close(0)
    driver.close(3)
    fresh = tokens(26)
    checked.rows_of(fresh, driver.feed(5, fresh, [9, 3]))
    driver.fork(2, 6)
    driver.rollback(6, 3)
    for _ in range(3):
        advance({seq: tokens(1) for seq in (1, 2, 4, 5, 6)})
    advance({seq: tokens(4) for seq in (1, 2, 4, 5, 6)}, shuffle=True)
    for seq in (1, 4, 5):
        driver.close(seq)
    for child in range(10, 17):
        driver.fork(2, child)
    for _ in range(2):  # eight ways from one trunk, which lies scattered by now
        advance({seq: tokens(1) for seq in (2, *range(10, 17))}, shuffle=True)
    return checked
