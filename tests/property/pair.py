"""Two bookkeepings under the same verbs."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
from agentkv_runtime import _core

from tests.reference_cells import CacheError, ReferenceCells


class Pair:
    """Both bookkeepings under the same verbs; every answer and every refusal is compared."""

    def __init__(self, native: Any, plain: ReferenceCells, seed: int) -> None:
        self.native = native
        self.plain: Any = plain
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

    # what is asked for

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

    # steps

    def plan(self, positions: list[int]) -> tuple[Any, Any]:
        """The common plan of the open step, native and plain."""
        window, sinks = self.random.choice([0, 0, 1, 2, 5, 50]), self.random.choice([0, 0, 1, 3])
        for _layer in range(2):
            native, plain = self.both("plan", positions)
            assert list(native.write_cells) == list(plain.write_cells), self.report("write cells")
            assert list(native.positions) == positions, self.report("plan positions")
            assert native.read_len == plain.read_len, self.report("read_len")
        chunk = self.random.choice([1, 4, 50])
        for bounds in ((0, 0), (window, sinks), (window, sinks, chunk)):
            got, want = np.asarray(native.mask(*bounds)), plain.mask(*bounds)
            assert np.array_equal(got.astype(bool), want), self.report(f"mask{bounds}\n{got}\n{want}")
        looked_at = plain.mask().any(axis=0)
        assert np.array_equal(np.asarray(native.cell_positions)[looked_at], plain.cell_positions[looked_at])
        self.runs(native, plain.mask())
        return native, plain

    def runs(self, native: Any, mask: Any) -> None:
        """The position-ordered runs say what the mask says."""
        views, tails = native.views, native.tails
        for row, (view, limit) in enumerate(zip(native.row_view, native.row_limit, strict=True)):
            seen = [(at + i, cell + i) for at, cell, n in views[view] for i in range(n) if at + i <= limit]
            seen += [(at + i, cell + i) for at, cell, n in tails[row] for i in range(n)]
            order = [at for at, _ in seen]
            assert order == sorted(set(order)), self.report(f"row {row} sees positions {order}")
            assert {cell for _, cell in seen} == set(np.flatnonzero(mask[row])), self.report(f"runs of row {row}")
