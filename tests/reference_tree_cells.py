"""Draft trees over the plain bookkeeping, as plainly as it can be said.

A node is a parent and, once a step has run it, a cell; what a row sees is looked up node by node. It is what the native
Cells is checked against, and needs neither torch nor the native module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.reference_cells import CacheError, Cell, InvalidStep, ReferenceCells

__all__ = ["InvalidTree", "Node", "ReferenceTreeCells"]


class InvalidTree(CacheError):
    """A parent that does not come earlier, or an accepted list that is no chain."""


@dataclass
class Node:
    """One draft token. Without a cell it is only proposed."""

    parent: int
    cell: int | None = None


class ReferenceTreeCells(ReferenceCells):
    """Sequences that can have draft nodes; the verbs of the native Cells.

    The cells of a draft belong to an owner of their own, so that no question about the sequence meets them.
    """

    def __init__(self, capacity: int, max_sequences: int = 256) -> None:
        super().__init__(capacity, max_sequences)
        self.frontiers: list[list[Node]] = [[] for _ in range(max_sequences)]
        self._rows: list[tuple[int, int | None]] = []  # of the open step: sequence, and node or None for a plain row

    # what is held

    def frontier_size(self, seq: int) -> int:
        """Draft nodes, proposed ones included."""
        self._in_range(seq)
        return len(self.frontiers[seq])

    def live(self, seq: int) -> list[Node]:
        """The nodes that have cells."""
        return [node for node in self.frontiers[seq] if node.cell is not None]

    def path(self, seq: int, node: int) -> list[int]:
        """The nodes from a root down to `node`."""
        parent = self.frontiers[seq][node].parent
        return [*(self.path(seq, parent) if parent >= 0 else []), node]

    # trees

    def propose(self, parents: Sequence[int], seq: int = 0) -> None:
        """Adds nodes that the next step with rows of seq runs."""
        self._outside_a_step("propose")
        self._in_range(seq)
        if not parents:
            raise InvalidTree("propose of no nodes")
        nodes = self.frontiers[seq]
        for index, parent in enumerate(parents, start=len(nodes)):
            if not -1 <= parent < index:
                raise InvalidTree(f"node {index} has parent {parent}")
        nodes += [Node(parent) for parent in parents]

    def commit(self, accepted: Sequence[int], seq: int = 0, cells: Sequence[int] | None = None) -> None:
        """Keeps the accepted chain and frees the rest.

        `cells` are those that the byte layer has moved the chain to; by default it lies where it was drafted.
        """
        self._outside_a_step("commit")
        self._in_range(seq)
        nodes = self.frontiers[seq]
        if accepted and len(self.live(seq)) < len(nodes):
            raise InvalidStep("commit of nodes that have not run")
        for above, index in zip([-1, *accepted], accepted, strict=False):
            if not 0 <= index < len(nodes) or nodes[index].parent != above:
                raise InvalidTree(f"node {index} is no child of {above}")
        drafted = [cell for index in accepted if (cell := nodes[index].cell) is not None]
        position = self.seq_len(seq)
        self._drop(seq)
        for offset, cell in enumerate(drafted if cells is None else cells):
            assert not self.cells[cell].owners, f"the chain was moved over cell {cell}, which is taken"
            self.cells[cell] = Cell(position + offset, {seq})
            self.lengths[seq] = position + offset + 1

    def _drop(self, seq: int) -> None:
        for node in self.live(seq):
            assert node.cell is not None
            self.cells[node.cell] = Cell()
        self.frontiers[seq].clear()

    # sequence verbs

    def seq_cp(self, src: int, dst: int, p0: int = 0, p1: int = -1) -> None:
        """Shares committed tokens alone; dst must have no nodes."""
        self._outside_a_step("seq_cp")
        if self.frontier_size(dst):
            raise InvalidTree(f"sequence {dst} has draft nodes")
        super().seq_cp(src, dst, p0, p1)

    def seq_rm(self, seq: int, p0: int = 0, p1: int = -1) -> None:
        """Without the last committed token the draft hangs from nothing and goes too."""
        self._outside_a_step("seq_rm")
        self._in_range(seq)
        length = self.seq_len(seq)
        if length == 0 and self.frontiers[seq] and p0 == 0 and p1 <= 0:
            self._drop(seq)
            return
        super().seq_rm(seq, p0, p1)
        if self.seq_len(seq) < length:
            self._drop(seq)

    def seq_keep(self, seq: int) -> None:
        """Drops every other sequence's claims and drafts."""
        self._outside_a_step("seq_keep")
        self._known(seq)
        for other in range(self.max_sequences):
            if other != seq:
                self._drop(other)
        for cell in self.cells:
            cell.owners &= {seq, _draft_of(seq)}
        self.lengths = {seq: self.seq_len(seq)}

    def clear(self) -> None:
        """Forgets everything."""
        super().clear()
        for nodes in self.frontiers:
            nodes.clear()

    # a step

    def begin_step(self, seq_ids: Sequence[int]) -> None:
        """Of a sequence's rows the last are its proposed nodes, all of them; those before are plain."""
        super().begin_step(seq_ids)
        try:
            self._rows = self._sort_rows(seq_ids)
        except InvalidStep:
            self._step = None
            raise

    def _sort_rows(self, seq_ids: Sequence[int]) -> list[tuple[int, int | None]]:
        left = Counter(seq_ids)
        for seq, n_rows in left.items():
            live, total = len(self.live(seq)), len(self.frontiers[seq])
            if n_rows < total - live:
                raise InvalidStep(f"{n_rows} rows of sequence {seq}, which has {total - live} proposed nodes")
            if n_rows > total - live and live:
                raise InvalidStep(f"plain rows of sequence {seq}, which has a draft")
        rows: list[tuple[int, int | None]] = []
        for seq in seq_ids:
            node = len(self.frontiers[seq]) - left[seq]
            rows.append((seq, node if node >= len(self.live(seq)) else None))
            left[seq] -= 1
        return rows

    def step_positions(self) -> list[int]:
        """The position that each row of the open step takes; empty without one."""
        if self._step is None:
            return []
        plain = Counter(seq for seq, node in self._rows if node is None)
        before: Counter[int] = Counter()
        positions = []
        for seq, node in self._rows:
            if node is None:
                positions.append(self.seq_len(seq) + before[seq])
                before[seq] += 1
            else:
                positions.append(self.seq_len(seq) + plain[seq] + len(self.path(seq, node)) - 1)
        return positions

    def _seen(self, row: int, positions: Sequence[int], write_cells: Sequence[int]) -> dict[int, int]:
        seq, node = self._rows[row]
        seen = self.held(seq)
        written = {}
        for other, (owner, its_node) in enumerate(self._rows):
            if owner == seq and its_node is not None:
                written[its_node] = write_cells[other]
            elif owner == seq and positions[other] <= positions[row]:
                seen[positions[other]] = write_cells[other]
        line = [] if node is None else self.path(seq, node)
        for position, ancestor in enumerate(line, start=positions[row] - len(line) + 1):
            cell = self.frontiers[seq][ancestor].cell
            seen[position] = written[ancestor] if cell is None else cell
        return seen

    def commit_step(self) -> None:
        """Publishes the planned cells."""
        plan, before = self._plan, dict(self.lengths)
        super().commit_step()
        assert plan is not None
        self.lengths = before
        for (seq, node), position, index in zip(self._rows, plan.positions, plan.write_cells, strict=True):
            if node is None:
                self.lengths[seq] = position + 1
            else:
                self.cells[index].owners = {_draft_of(seq)}
                self.frontiers[seq][node].cell = index

    def abort_step(self) -> None:
        """Forgets the open step, if any, and every node that has not run."""
        super().abort_step()
        for nodes in self.frontiers:
            nodes[:] = [node for node in nodes if node.cell is not None]


def _draft_of(seq: int) -> int:
    """The owner of a sequence's draft cells, which no sequence id equals."""
    return -1 - seq
