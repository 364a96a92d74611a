"""The native bookkeeping against the plain one: random verbs, steps and failures must give the same answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from agentkv_runtime import _core

from tests.property.pair import Pair
from tests.reference_tree_cells import ReferenceTreeCells

VERBS_PER_POOL = {(1, 1): 2_000, (7, 3): 12_000, (40, 6): 16_000, (150, 12): 14_000, (330, 300): 8_000}


class SeqPair(Pair):
    """What an agent does without trees."""

    def __init__(self, capacity: int, max_sequences: int, seed: int) -> None:
        super().__init__(_core.Cells(capacity, max_sequences), ReferenceTreeCells(capacity, max_sequences), seed)

    def copy(self) -> None:
        src, dst = self.a_sequence(), self.a_sequence()
        self.both("seq_cp", src, dst, *self.a_range(src))
        self.compare([seq for seq in (src, dst) if 0 <= seq < self.plain.max_sequences])

    def remove(self) -> None:
        seq = self.a_sequence()
        self.both("seq_rm", seq, *self.a_range(seq))
        self.compare([seq] if 0 <= seq < self.plain.max_sequences else [])

    def keep(self) -> None:
        self.both("seq_keep", self.a_sequence())

    def forget(self) -> None:
        self.both("clear")

    def out_of_order(self) -> None:
        self.both(self.random.choice(["commit_step", "abort_step"]))
        self.both("plan", [0])

    def step(self) -> None:
        rows = self.random.choice([1, 1, 2, 3, 8, self.plain.capacity + 1])
        seqs = [self.a_sequence() for _ in range(rows)]
        if self.random.random() < 0.5:
            seqs = [seqs[0]] * rows  # a prefill
        answers = self.both("begin_step", seqs if self.random.random() > 0.01 else [])
        if answers[0] != "done":
            return
        positions = self.plain.step_positions()
        native = self.both("step_positions")[0]
        assert list(native) == positions, self.report("positions")
        if self.random.random() < 0.05:
            self.inside_a_step(positions)
        before = self.plain.used
        if self.random.random() < 0.95:
            self.kind(*self.plan(positions))
        # A forward that fails: before the first layer planned, or after some did.
        if self.random.random() < 0.2:
            self.both("abort_step")
            assert self.native.used == before, self.report("abort")
        elif self.both("commit_step")[0] != "done":
            self.both("abort_step")
        self.compare(set(seqs))

    def inside_a_step(self, positions: list[int]) -> None:
        self.both("begin_step", [0])
        self.both("seq_cp", 0, 1 % self.plain.max_sequences)
        self.both("seq_rm", 0)
        self.both("seq_keep", 0)
        self.both("clear")
        self.both("plan", [position + 1 for position in positions])
        self.both("plan", [*positions, 0])

    def kind(self, native: Any, plain: Any) -> None:
        """SingleContiguous says that position p lies in cell p for all of one sequence."""
        (seq, *others) = set(plain.seq_ids)
        held = {**self.plain.held(seq), **dict(zip(plain.positions, plain.write_cells, strict=True))}
        straight = not others and held == {position: position for position in range(len(held))}
        assert (native.kind == _core.StepPlan.Kind.SingleContiguous) == straight, self.report(f"kind {native.kind}")
        self.kinds[native.kind.name] = self.kinds.get(native.kind.name, 0) + 1


@pytest.mark.parametrize("pool", VERBS_PER_POOL, ids=str)
def test_random_verbs_agree(pool: tuple[int, int]) -> None:
    pair = SeqPair(*pool, seed=pool[0])
    actions: list[Callable[[], None]] = [pair.step, pair.copy, pair.remove, pair.keep, pair.forget, pair.out_of_order]
    weights = [60, 14, 22, 0.5, 0.3, 1]
    last_sweep = 0
    while pair.verbs < VERBS_PER_POOL[pool]:
        pair.random.choices(actions, weights)[0]()
        if pair.verbs - last_sweep > 300:
            last_sweep = pair.verbs
            pair.compare(range(pool[1]))
    print(f"\npool {pool}: {pair.verbs} verbs, plans: {pair.kinds}, refused: {pair.refused}")
    assert pair.kinds["SingleContiguous"] > 10
    # A run that never filled the pool or never broke a rule would show little.
    assert {"CacheFull", "InvalidStep", "UnknownSequence"} <= set(pair.refused)
    assert pool[0] == 1 or pair.refused["InvalidRange"] > 10
