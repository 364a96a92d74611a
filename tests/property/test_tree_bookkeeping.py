"""Draft trees in the native bookkeeping against the plain one: random trees, steps and failures must agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from agentkv_runtime import _core

from tests.property.pair import Pair
from tests.reference_tree_cells import ReferenceTreeCells

VERBS_PER_POOL = {(1, 1): 1_000, (9, 3): 11_000, (48, 5): 16_000, (160, 8): 14_000, (500, 12): 8_000}
MAX_NODES, MAX_DEPTH = 64, 12
SEEN = ("levels", "rows with tails", "moved", "failed moves", "straight again")


class ByteLayerError(Exception):
    """What a byte layer that cannot move cells raises."""


class TreePair(Pair):
    """What an agent does, with draft trees on any of its sequences."""

    def __init__(self, capacity: int, max_sequences: int, seed: int) -> None:
        super().__init__(_core.Cells(capacity, max_sequences), ReferenceTreeCells(capacity, max_sequences), seed)
        self.bytes = [0] * capacity  # what the byte layer has in each cell: the number of the row that wrote it
        self.rows = 0
        self.counts: Counter[str] = Counter()

    def compare(self, seqs: Any) -> None:
        """Frontiers too."""
        super().compare(seqs)
        live = 0
        for seq in range(self.plain.max_sequences):
            assert self.native.frontier_size(seq) == self.plain.frontier_size(seq), self.report(f"frontier of {seq}")
            live += bool(self.plain.seq_len(seq) or self.plain.live(seq))
        assert self.native.live_sequences == live, self.report("live sequences")

    def compare_if_known(self, *seqs: int) -> None:
        self.compare([seq for seq in seqs if 0 <= seq < self.plain.max_sequences])

    # trees

    def a_tree(self, seq: int) -> list[int]:
        """Parents of new nodes: whole trees of some shape, or one more level."""
        nodes = self.plain.frontiers[seq]
        first, top = len(nodes), min(MAX_NODES, max(3, self.plain.capacity // 4))
        count = self.random.choice([1, 2, 3, 5, 8, 13, MAX_NODES])
        shape = self.random.choice(["path", "path", "level", "level", "bushy", "any"])
        depths = [len(self.plain.path(seq, node)) for node in range(first)]
        parents: list[int] = []
        deepest = max(depths, default=0)
        for node in range(first, min(first + count, top)):
            if shape == "path":
                parent = node - 1
            elif shape == "level":
                parent = self.random.choice([at for at in range(first) if depths[at] == deepest] or [-1])
            elif shape == "bushy":
                parent = self.random.randint(max(-1, node - 6), node - 1)
            else:
                parent = self.random.randint(-1, node - 1)
            if parent >= 0 and depths[parent] == MAX_DEPTH:
                parent = -1
            parents.append(parent)
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        if self.random.random() < 0.04:
            parents.insert(self.random.randint(0, len(parents)), self.random.choice([-2, first + len(parents) + 3]))
        return parents

    def propose(self, seq: int | None = None) -> None:
        seq = self.a_sequence() if seq is None else seq
        known = 0 <= seq < self.plain.max_sequences
        self.both("propose", self.a_tree(seq) if known else [-1], seq)
        self.compare_if_known(seq)

    def a_chain(self, seq: int) -> list[int]:
        live = len(self.plain.live(seq)) if 0 <= seq < self.plain.max_sequences else 0
        if self.random.random() < 0.06:
            return [self.random.randint(-1, MAX_NODES) for _ in range(self.random.randint(1, 3))]
        if live == 0 or self.random.random() < 0.15:
            return []
        path: list[int] = self.plain.path(seq, self.random.randrange(live))
        return path if self.random.random() < 0.7 else path[: self.random.randint(1, len(path))]

    def commit(self, seq: int | None = None) -> None:
        """The byte layer moves what it is told to; afterwards the chain's cells hold what its nodes wrote."""
        seq = self.a_sequence() if seq is None else seq
        chain = self.a_chain(seq)
        fails, moves = self.random.random() < 0.1, self.random.random() < 0.9
        moved: list[int] = []

        def move_cells(src: list[int], dst: list[int]) -> None:
            moved.extend(dst)
            if fails:
                raise ByteLayerError
            for one, other in zip(src, dst, strict=True):
                self.bytes[other] = self.bytes[one]

        known = 0 <= seq < self.plain.max_sequences
        lone = known and moves and self.lone_and_straight(seq, chain)
        written = self.written(seq, chain) if known else []
        self.verbs += 1
        self.history.append(f"commit({chain}, {seq}, moves={moves}, fails={fails})")
        try:
            native = self._answer(self.native, "commit", (chain, seq, move_cells if moves else None))
        except ByteLayerError:
            self.plain.commit([], seq)  # the frontier is dropped
            self.counts["failed moves"] += 1
            self.compare([seq])
            return
        if native != "done":
            assert native == self._answer(self.plain, "commit", (chain, seq)), self.report(f"native {native}")
            self.refused[native] = self.refused.get(native, 0) + 1
            self.compare_if_known(seq)
            return
        cells = self.cells_at(seq, self.plain.seq_len(seq), len(chain))
        assert self._answer(self.plain, "commit", (chain, seq, cells)) == "done", self.report("plain refused")
        assert [self.bytes[cell] for cell in cells] == written, self.report(f"chain in {cells}")
        assert set(moved) <= set(cells), self.report(f"moved to {moved}")
        self.counts["accepted"] += len(chain)
        self.counts["moved"] += len(moved)
        self.compare([seq])
        if lone and self.plain.can_extend(1):
            self.is_straight_again(seq)

    def cells_at(self, seq: int, position: int, n: int) -> list[int]:
        """Where the native bookkeeping has n positions of a sequence."""
        held = {at + i: cell + i for at, cell, length in self.native.seq_runs(seq) for i in range(length)}
        return [held[at] for at in range(position, position + n)]

    def written(self, seq: int, chain: list[int]) -> list[int]:
        nodes = self.plain.frontiers[seq]
        cells = [nodes[node].cell for node in chain if 0 <= node < len(nodes)]
        return [self.bytes[cell] for cell in cells if cell is not None]

    def lone_and_straight(self, seq: int, chain: list[int]) -> bool:
        """Nothing but this sequence is held, and position p of it lies in cell p."""
        held = self.plain.held(seq)
        nodes = self.plain.live(seq)
        cells = [nodes[node].cell for node in chain if 0 <= node < len(nodes)]
        # A chain whose cells are not in order, as levels leave them around freed cells, may stay where it is.
        ordered = cells == sorted(cells)
        alone = self.plain.used == len(held) + len(nodes)
        return ordered and alone and held == {position: position for position in range(len(held))}

    def is_straight_again(self, seq: int) -> None:
        self.both("begin_step", [seq])
        positions = self.plain.step_positions()
        native, _ = self.plan(positions)
        assert native.kind == _core.StepPlan.Kind.SingleContiguous, self.report(f"kind {native.kind}")
        self.counts["straight again"] += 1
        self.both("abort_step")

    # steps

    def some_rows(self) -> list[int]:
        """Rows of a few sequences, every proposed node among them, the sequences' rows in any order."""
        seqs = {self.a_sequence() for _ in range(self.random.choice([1, 1, 2, 3]))}
        rows: list[int] = []
        for seq in seqs:
            proposed = 0
            if 0 <= seq < self.plain.max_sequences:
                proposed = self.plain.frontier_size(seq) - len(self.plain.live(seq))
            plain = self.random.choice([0, 1, 1, 1, 2, 9]) if proposed else self.random.choice([1, 1, 2, 9])
            if 0 <= seq < self.plain.max_sequences and self.plain.live(seq) and self.random.random() < 0.9:
                plain = 0
            off = self.random.choice([-1, 1]) if self.random.random() < 0.02 else 0
            rows += [seq] * (proposed + plain + off)
        if self.random.random() < 0.7:
            self.random.shuffle(rows)
        return rows

    def step(self, rows: list[int] | None = None) -> None:
        rows = self.some_rows() if rows is None else rows
        if self.both("begin_step", rows)[0] != "done":
            self.compare_if_known(*set(rows))
            return
        positions = self.plain.step_positions()
        assert list(self.both("step_positions")[0]) == positions, self.report("positions")
        if self.random.random() < 0.05:
            self.inside_a_step(positions)
        native = None
        if self.random.random() < 0.95:
            native, plain = self.plan(positions)
            self.kind(native, plain)
        if self.random.random() < 0.1 or self.both("commit_step")[0] != "done":
            self.both("abort_step")
        elif native is not None:
            for cell in native.write_cells:
                self.rows += 1
                self.bytes[cell] = self.rows
        self.compare(set(rows))

    def inside_a_step(self, positions: list[int]) -> None:
        self.both("begin_step", [0])
        self.both("propose", [-1], 0)
        self.both("commit", [], 0)
        self.both("seq_cp", 0, 1 % self.plain.max_sequences)
        self.both("seq_rm", 0)
        self.both("seq_keep", 0)
        self.both("clear")
        self.both("plan", [position + 1 for position in positions])

    def kind(self, native: Any, plain: Any) -> None:
        """SingleContiguous says that every row sees cells 0 to its own position, and is no node of a branching tree."""
        (seq, *others) = set(plain.seq_ids)
        straight = not others and all(node.parent == at - 1 for at, node in enumerate(self.plain.frontiers[seq]))
        for position, seen in zip(plain.positions, plain.seen, strict=True):
            straight = straight and seen == {at: at for at in range(position + 1)}
        assert (native.kind == _core.StepPlan.Kind.SingleContiguous) == straight, self.report(f"kind {native.kind}")
        self.kinds[native.kind.name] = self.kinds.get(native.kind.name, 0) + 1
        self.counts["rows with tails"] += sum(1 for tail in native.tails if tail)

    # what an agent does

    def round(self, seqs: list[int] | None = None) -> None:
        """A round of speculation on some sequences: trees, whole or in levels, with a step for each; then commits."""
        seqs = seqs or self.random.sample(range(self.plain.max_sequences), min(self.plain.max_sequences, 3))
        for _level in range(self.random.choice([1, 1, 2, 3])):
            for seq in seqs:
                self.propose(seq)
            rows = [seq for seq in seqs if not self.plain.live(seq)]
            self.counts["levels"] += len(seqs) - len(rows)
            rows += [seq for seq in seqs for _ in range(self.plain.frontier_size(seq) - len(self.plain.live(seq)))]
            if rows:
                self.step(rows)
        for seq in seqs:
            self.commit(seq)

    def alone(self) -> None:
        """Rounds of the only sequence."""
        seq = self.random.randrange(self.plain.max_sequences)
        if self.random.random() < 0.5:
            self.both("clear")
        else:
            self.both("seq_keep", seq)
        for _ in range(self.random.randint(1, 5)):
            self.round([seq])

    def make_room(self) -> None:
        """A pool that stays full shows refusals alone."""
        for seq in range(self.plain.max_sequences):
            if self.random.random() < 0.6:
                self.both("commit", [], seq)
                self.both("seq_rm", seq)
        self.compare(range(self.plain.max_sequences))

    def copy(self) -> None:
        src, dst = self.a_sequence(), self.a_sequence()
        self.both("seq_cp", src, dst, *self.a_range(src))
        self.compare_if_known(src, dst)

    def remove(self) -> None:
        seq = self.a_sequence()
        self.both("seq_rm", seq, *self.a_range(seq))
        self.compare_if_known(seq)

    def keep(self) -> None:
        self.both("seq_keep", self.a_sequence())
        self.compare([])

    def forget(self) -> None:
        self.both("clear")
        self.compare([])

    def abort(self) -> None:
        self.both("abort_step")
        self.compare([])


@pytest.mark.parametrize("pool", VERBS_PER_POOL, ids=str)
def test_random_trees_agree(pool: tuple[int, int]) -> None:
    pair = TreePair(*pool, seed=pool[0])
    actions: list[Callable[[], None]] = [
        pair.round,
        pair.alone,
        pair.propose,
        pair.step,
        pair.commit,
        pair.copy,
        pair.remove,
        pair.keep,
        pair.forget,
        pair.abort,
    ]
    weights = [30, 3, 8, 20, 8, 8, 14, 0.7, 0.3, 0.7]
    last_sweep = 0
    while pair.verbs < VERBS_PER_POOL[pool]:
        pair.random.choices(actions, weights)[0]()
        if pair.plain.used > 0.9 * pool[0] and pair.random.random() < 0.5:
            pair.make_room()
        if pair.verbs - last_sweep > 300:
            last_sweep = pair.verbs
            pair.compare(range(pool[1]))
    print(f"\npool {pool}: {pair.verbs} verbs, plans: {pair.kinds}, {dict(pair.counts)}, refused: {pair.refused}")
    for seq in range(pool[1]):
        pair.both("commit", [], seq)
    committed = {cell for seq in range(pool[1]) for cell in pair.plain.held(seq).values()}
    assert pair.native.used == pair.plain.used == len(committed)
    assert pair.kinds["SingleContiguous"] > 10
    # A run that never broke a rule, or never had a byte layer fail, would show little.
    assert {"InvalidStep", "InvalidTree", "UnknownSequence"} <= set(pair.refused)
    assert pool[0] > 160 or pair.refused["CacheFull"] > 10
    if pool[0] > 9:
        assert min(pair.counts[what] for what in SEEN) > 10, pair.counts
