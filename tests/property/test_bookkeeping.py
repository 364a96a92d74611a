"""The native bookkeeping against the plain one: random verbs, steps and failures must give the same answers."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agentkv_runtime import _core
from agentkv_runtime.eager.bookkeeping import CacheError, ReferenceCells

VERBS_PER_POOL = {(1, 1): 2_000, (7, 3): 12_000, (40, 6): 16_000, (150, 12): 14_000, (330, 300): 8_000}


class Pair:
    """Both bookkeepings under the same verbs; every answer and every refusal is compared."""

    def __init__(self, capacity: int, max_sequences: int, seed: int) -> None:
        self.native = _core.SeqCells(capacity, max_sequences)
        self.plain = ReferenceCells(capacity, max_sequences)
        self.random = random.Random(seed)
        self.verbs = 0
        self.refused: dict[str, int] = {}
        self.kinds: dict[str, int] = {}
        self.history: deque[str] = deque(maxlen=30)

    def both(self, verb: str, *args: Any) -> Any:
        """The common answer, or the name of the common refusal."""
        self.verbs += 1
        self.history.append(f"{verb}{args}")
        answers = [self._answer(side, verb, args) for side in (self.native, self.plain)]
        if verb in ("plan", "step_positions"):
            ours = [answer if isinstance(answer, str) else "done" for answer in answers]
        else:
            ours = answers
        assert ours[0] == ours[1], self.report(f"native {ours[0]!r}, plain {ours[1]!r}")
        if isinstance(ours[0], str) and ours[0] != "done":
            self.refused[ours[0]] = self.refused.get(ours[0], 0) + 1
        return answers

    @staticmethod
    def _answer(side: Any, verb: str, args: tuple[Any, ...]) -> Any:
        try:
            answer = getattr(side, verb)(*args)
            return "done" if answer is None else answer
        except (_core.Error, CacheError) as error:
            return type(error).__name__

    def report(self, what: str) -> str:
        return what + "\nlast verbs:\n  " + "\n  ".join(self.history)

    def compare(self, seqs: Any) -> None:
        """Counts, lengths and the cell of every position of some sequences."""
        assert self.native.used == self.plain.used, self.report("used")
        shared = sum(1 for cell in self.plain.cells if len(cell.owners) > 1)
        assert self.native.shared == shared, self.report("shared")
        for seq in seqs:
            held = self.plain.held(seq)
            runs = [tuple(run) for run in self.native.seq_runs(seq)]
            assert [run[0] for run in runs] == sorted(run[0] for run in runs), self.report("order of runs")
            cells = {position + i: cell + i for position, cell, length in runs for i in range(length)}
            assert cells == held, self.report(f"cells of {seq}: native {cells}, plain {held}")
            assert self.native.seq_len(seq) == self.plain.seq_len(seq), self.report(f"length of {seq}")

    # what an agent does

    def a_sequence(self) -> int:
        top = self.plain.max_sequences
        if self.random.random() < 0.03:
            return self.random.choice([-1, top, top + 7])
        return self.random.randrange(min(top, 8)) if self.random.random() < 0.9 else self.random.randrange(top)

    def a_range(self, seq: int) -> tuple[int, int]:
        length = self.plain.seq_len(seq) if 0 <= seq < self.plain.max_sequences else 3
        pick = self.random.random()
        if pick < 0.3:
            return 0, -1
        if pick < 0.65:
            return self.random.randint(0, length), -1
        if pick < 0.95:
            return tuple(sorted((self.random.randint(0, length), self.random.randint(0, length))))  # type: ignore[return-value]
        return self.random.randint(-2, length + 2), self.random.randint(-1, length + 3)

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
            self.plan(positions)
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

    def plan(self, positions: list[int]) -> None:
        window, sinks = self.random.choice([0, 0, 1, 2, 5, 50]), self.random.choice([0, 0, 1, 3])
        for _layer in range(2):
            native, plain = self.both("plan", positions)
            assert list(native.write_cells) == list(plain.write_cells), self.report("write cells")
            assert list(native.positions) == positions, self.report("plan positions")
            assert native.read_len == plain.read_len, self.report("read_len")
        for bounds in ((0, 0), (window, sinks)):
            got, want = np.asarray(native.mask(*bounds)), plain.mask(*bounds)
            assert np.array_equal(got.astype(bool), want), self.report(f"mask{bounds}\n{got}\n{want}")
        self.runs(native, plain.mask())
        self.kind(native, plain)

    def runs(self, native: Any, mask: Any) -> None:
        """The position-ordered runs say what the mask says."""
        views, tails = native.views, native.tails
        for row, (view, limit) in enumerate(zip(native.row_view, native.row_limit, strict=True)):
            seen = [(at + i, cell + i) for at, cell, n in views[view] for i in range(n) if at + i <= limit]
            seen += [(at + i, cell + i) for at, cell, n in tails[row] for i in range(n)]
            order = [at for at, _ in seen]
            assert order == sorted(set(order)), self.report(f"row {row} sees positions {order}")
            assert {cell for _, cell in seen} == set(np.flatnonzero(mask[row])), self.report(f"runs of row {row}")

    def kind(self, native: Any, plain: Any) -> None:
        """SingleContiguous says that position p lies in cell p for all of one sequence."""
        (seq, *others) = set(plain.seq_ids)
        held = {**self.plain.held(seq), **dict(zip(plain.positions, plain.write_cells, strict=True))}
        straight = not others and held == {position: position for position in range(len(held))}
        assert (native.kind == _core.StepPlan.Kind.SingleContiguous) == straight, self.report(f"kind {native.kind}")
        self.kinds[native.kind.name] = self.kinds.get(native.kind.name, 0) + 1


@pytest.mark.parametrize("pool", VERBS_PER_POOL, ids=str)
def test_random_verbs_agree(pool: tuple[int, int]) -> None:
    pair = Pair(*pool, seed=pool[0])
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
