"""States of a model's layers, which some cells have beside their rows: read, written, checked when they come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from agentkv_runtime.tensor_file import TensorSpec

from ._lacking import Lacks
from ._snapshot import BranchState, CellArray, cell_arrays

if TYPE_CHECKING:
    from agentkv_runtime.tensor_file import Bytes

    from ._engine import CellStore, StepEngine

STATE_ROWS = "states.rows"
STATES = "states.of."
"""Tensors of a file: which rows have states, and behind this the name of each array of theirs."""
BLOCK = 64  # positions, at the last of which the CPU's layers keep a state

Rows = npt.NDArray[np.int32]


class States(NamedTuple):
    """Which rows of a hold have states, and what a state is."""

    arrays: Sequence[CellArray]
    rows: Rows

    @property
    def at_once(self) -> int:
        """How many are read or written between two forwards."""
        return max(1, (16 << 20) // self.arrays[-1].end) if self.arrays else 1

    def slices(self) -> list[Rows]:
        """The rows, so many at a time."""
        return [self.rows[first : first + self.at_once] for first in range(0, len(self.rows), self.at_once)]


def states_of(hold: int, count: int, engine: StepEngine, cells: CellStore) -> States:
    """Those of a hold of so many rows."""
    arrays = cell_arrays(cells.state_arrays)
    rows = cells.with_states(engine.pinned_cells(hold, 0, count)) if arrays else []
    return States(arrays, np.asarray(rows, np.int32))


def _cells_of(hold: int, rows: Rows, engine: StepEngine) -> list[int]:
    return [engine.pinned_cells(hold, int(row), 1)[0] for row in rows]


def read_states(hold: int, rows: Rows, engine: StepEngine, cells: CellStore) -> Bytes:
    """The states of some rows of a hold, uint8 [n, bytes of a state]."""
    return cells.read_states(_cells_of(hold, rows, engine))


def write_states(hold: int, rows: Rows, states: Bytes, engine: StepEngine, cells: CellStore) -> None:
    """Writes them; the rows are there."""
    cells.write_states(_cells_of(hold, rows, engine), states)


def stateless(states: States, lacks: Lacks, branches: Sequence[BranchState]) -> int | None:
    """The first row that should have a state and has none: one that ends a block and is held."""
    if not states.arrays:
        return None
    group = states.arrays[0].group
    assert group is not None, "layers with states have a window"
    ends = np.zeros(len(lacks), np.bool_)
    for branch in branches:
        for row, position, count in branch.rows:
            first = int(row) + (BLOCK - 1 - int(position)) % BLOCK
            ends[first : int(row) + int(count) : BLOCK] = True
    ends[states.rows] = False
    missing = np.flatnonzero(ends & (lacks <= group))
    return int(missing[0]) if len(missing) else None


def state_spec(array: CellArray, rows: int) -> TensorSpec:
    """The tensor of so many states."""
    return TensorSpec(STATES + array.spec.name, array.spec.dtype, (rows, *array.spec.shape))
