"""Which cell holds which token, as plainly as it can be said.

Every cell is a position and the set of sequences that own it; every question is answered by looking at all cells. It
shares no code and no idea with the native bookkeeping, which is checked against it. Needs neither torch nor the native
module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = [
    "CacheError",
    "CacheFull",
    "Cell",
    "InvalidRange",
    "InvalidStep",
    "InvalidTensor",
    "ReferenceCells",
    "ReferencePlan",
    "UnknownSequence",
]


class CacheError(Exception):
    """Base of the refusals below, which are named as in the native module."""


class CacheFull(CacheError):
    """The pool has fewer free cells than a step needs."""


class UnknownSequence(CacheError):
    """A sequence id that is out of range or holds nothing."""


class InvalidRange(CacheError):
    """Positions outside what a sequence holds."""


class InvalidStep(CacheError):
    """A step verb out of order."""


class InvalidTensor(CacheError):
    """Shapes or values that do not fit the open step."""


@dataclass
class Cell:
    """One row of K and V: the position of its token and who may see it. No owner means free."""

    position: int = 0
    owners: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class ReferencePlan:
    """What a byte layer is told about one step. `seen` has, per row, the cell of each position that it sees."""

    seq_ids: tuple[int, ...]
    positions: tuple[int, ...]
    write_cells: tuple[int, ...]
    seen: tuple[dict[int, int], ...]

    @property
    def read_len(self) -> int:
        """One past the highest cell that some row sees."""
        return 1 + max(cell for row in self.seen for cell in row.values())

    @property
    def cell_positions(self) -> npt.NDArray[np.int64]:
        """int64 `[read_len]`: the position of what each cell holds, 0 where nobody looks."""
        out = np.zeros(self.read_len, dtype=np.int64)
        for row in self.seen:
            for at, cell in row.items():
                out[cell] = at
        return out

    def mask(self, window: int = 0, sinks: int = 0, chunk: int = 0) -> npt.NDArray[np.bool_]:
        """Bool `[n_tokens, read_len]`: True where row i sees cell j."""
        out = np.zeros((len(self.seen), self.read_len), dtype=np.bool_)
        for row, (position, seen) in enumerate(zip(self.positions, self.seen, strict=True)):
            near = {at for at in seen if window == 0 or at > position - window or at < sinks}
            out[row, [seen[at] for at in near if chunk == 0 or at // chunk == position // chunk]] = True
        return out


class ReferenceCells:
    """A pool of cells shared by sequences; the verbs of the native Cells, draft trees aside."""

    def __init__(self, capacity: int, max_sequences: int = 256) -> None:
        self.cells = [Cell() for _ in range(capacity)]
        self.max_sequences = max_sequences
        self.lengths: dict[int, int] = {}
        self._step: tuple[int, ...] | None = None
        self._plan: ReferencePlan | None = None

    # what is held

    @property
    def capacity(self) -> int:
        """Cells in the pool."""
        return len(self.cells)

    @property
    def used(self) -> int:
        """Cells that some sequence owns."""
        return sum(1 for cell in self.cells if cell.owners)

    def can_extend(self, n: int) -> bool:
        """Are n more cells free?"""
        return n <= self.capacity - self.used

    def seq_len(self, seq: int) -> int:
        """The position that follows, whatever holes there are; 0 for an empty sequence."""
        self._in_range(seq)
        return self.lengths.get(seq, 0)

    def held(self, seq: int) -> dict[int, int]:
        """Position -> cell of what a sequence owns."""
        return {cell.position: index for index, cell in enumerate(self.cells) if seq in cell.owners}

    # sequence verbs

    def seq_cp(self, src: int, dst: int, p0: int = 0, p1: int = -1) -> None:
        """Shares src's cells over [p0, p1) with dst, which must hold none there; p1 < 0 means the end."""
        self._outside_a_step("seq_cp")
        shared = self._range(src, p0, p1)
        self._in_range(dst)
        end = self.seq_len(src) if p1 < 0 else p1
        taken = set(self.held(dst)) & set(range(p0, end))
        if taken:
            raise InvalidRange(f"sequence {dst} already holds positions {sorted(taken)}")
        for cell in shared:
            cell.owners.add(dst)
        if p0 < end:
            self.lengths[dst] = max(self.seq_len(dst), end)

    def seq_rm(self, seq: int, p0: int = 0, p1: int = -1) -> None:
        """Drops seq's claim on [p0, p1); a cell frees when no owner remains."""
        self._outside_a_step("seq_rm")
        for cell in self._range(seq, p0, p1):
            cell.owners.discard(seq)
        if p1 < 0 or p1 == self.seq_len(seq):
            self.lengths[seq] = p0

    def seq_keep(self, seq: int) -> None:
        """Drops every other sequence's claims."""
        self._outside_a_step("seq_keep")
        self._known(seq)
        for cell in self.cells:
            cell.owners &= {seq}
        self.lengths = {seq: self.seq_len(seq)}

    def clear(self) -> None:
        """Forgets everything."""
        self._outside_a_step("clear")
        for cell in self.cells:
            cell.owners.clear()
        self.lengths.clear()

    # a step

    def begin_step(self, seq_ids: Sequence[int]) -> None:
        """Row i extends sequence seq_ids[i]; mutates nothing that a query could see."""
        self._outside_a_step("begin_step")
        if not seq_ids:
            raise InvalidStep("a step needs at least one row")
        for seq in seq_ids:
            self._in_range(seq)
        if not self.can_extend(len(seq_ids)):
            raise CacheFull(f"{len(seq_ids)} cells asked, {self.capacity - self.used} free")
        self._step = tuple(seq_ids)

    def step_positions(self) -> list[int]:
        """The position that each row of the open step takes; empty without one."""
        seq_ids = self._step or ()
        return [self.seq_len(seq) + seq_ids[:row].count(seq) for row, seq in enumerate(seq_ids)]

    def plan(self, positions: Sequence[int]) -> ReferencePlan:
        """Plans the open step: the lowest free cells, in row order."""
        seq_ids = self._open_step("plan")
        if self._plan is None:
            expected = self.step_positions()
            if list(positions) != expected:
                raise InvalidStep(f"the program was fed positions {list(positions)}, the step takes {expected}")
            free = [index for index, cell in enumerate(self.cells) if not cell.owners]
            write_cells = tuple(free[: len(seq_ids)])
            seen = tuple(self._seen(row, expected, write_cells) for row in range(len(seq_ids)))
            self._plan = ReferencePlan(seq_ids, tuple(expected), write_cells, seen)
        return self._plan

    def _seen(self, row: int, positions: Sequence[int], write_cells: Sequence[int]) -> dict[int, int]:
        seq_ids = self._open_step("plan")
        written = {positions[other]: write_cells[other] for other in range(row + 1) if seq_ids[other] == seq_ids[row]}
        return {**self.held(seq_ids[row]), **written}

    def commit_step(self) -> None:
        """Publishes the planned cells."""
        self._open_step("commit_step")
        if self._plan is None:
            raise InvalidStep("commit_step before any layer planned the step")
        plan = self._plan
        for seq, position, index in zip(plan.seq_ids, plan.positions, plan.write_cells, strict=True):
            self.cells[index] = Cell(position, {seq})
            self.lengths[seq] = position + 1
        self._step = self._plan = None

    def abort_step(self) -> None:
        """Forgets the open step, if any."""
        self._step = self._plan = None

    # refusals

    def _outside_a_step(self, verb: str) -> None:
        if self._step is not None:
            raise InvalidStep(f"{verb} inside a step")

    def _open_step(self, verb: str) -> tuple[int, ...]:
        if self._step is None:
            raise InvalidStep(f"{verb} without begin_step")
        return self._step

    def _in_range(self, seq: int) -> None:
        if not 0 <= seq < self.max_sequences:
            raise UnknownSequence(f"sequence {seq} is outside [0, {self.max_sequences})")

    def _known(self, seq: int) -> None:
        self._in_range(seq)
        if not self.seq_len(seq):
            raise UnknownSequence(f"sequence {seq} holds nothing")

    def _range(self, seq: int, p0: int, p1: int) -> list[Cell]:
        self._known(seq)
        length = self.seq_len(seq)
        end = length if p1 < 0 else p1
        if not 0 <= p0 <= end <= length:
            raise InvalidRange(f"[{p0}, {end}) is outside [0, {length}) of sequence {seq}")
        return [self.cells[index] for position, index in self.held(seq).items() if p0 <= position < end]
