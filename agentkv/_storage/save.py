"""Saving branches: what they are at one moment, written beside everything else that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .._engine.commands import CellCall
from .._engine.loop import in_thread
from .._engine.pinned_cells import CellHold
from .._types.errors import InvalidInput, SnapshotError
from .._types.show import shown
from .layout import PAGE, BranchState, CellArray, Lacks, Lanes, States, cell_arrays, lanes_of, read_states, states_of
from .writer import append_cells, append_padding, append_states, begin_file

if TYPE_CHECKING:
    from agentkv_runtime.engine import StoredBranch
    from agentkv_runtime.tensor_file import Bytes, TensorWriter

    from .._engine.interface import CellStore, StepEngine
    from .._engine.loop import StepLoop
    from .._state.branch_state import Histories
    from ..output._compiler import Grammars
    from .layout import ModelKey

SLICE_BYTES = 4 << 20  # of cells copied between two forwards: a millisecond or two

Progress: TypeAlias = Callable[[int, int], object]
"""Hears how many bytes are done, and of how many; on the event loop."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What was saved.

    Attributes:
        path: the file.
        nbytes: its size.
        cells: cells in it; those that several branches share once.
    """

    path: Path
    nbytes: int
    cells: int


def reporting(progress: object) -> Progress:
    """What a save or a load tells of its progress; nobody, for None. Raises InvalidInput for what cannot be called."""
    if progress is None:
        return lambda done, of: None
    if not callable(progress):
        raise InvalidInput(
            f"progress is {shown(progress)}, but it is called with what is done and what there is in all"
        )
    return progress


@dataclass(frozen=True, slots=True)
class Storage:
    """What saving and loading need of a Context.

    Attributes:
        loop: runs what touches cells.
        states: tokens and conversation of each branch.
        grammars: restores constraints, and writes them.
        model_key: what saved cells belong to; called in threads.
    """

    loop: StepLoop
    states: Histories
    grammars: Grammars
    model_key: Callable[[], ModelKey]


@dataclass(frozen=True, slots=True)
class Taken:
    """Branches as they are at one moment, and a hold on their cells."""

    id: int  # of the hold
    rows: int
    images: Sequence[StoredBranch]
    arrays: Sequence[CellArray]
    lanes: Lanes | None  # what the arrays are then
    lacks: Lacks  # of the rows
    states: States


class Saving:
    """One file in the making."""

    def __init__(
        self, storage: Storage, branches: Mapping[str, int], path: Path, shareable: bool, progress: Progress | None
    ) -> None:
        self._storage = storage
        self._loop = storage.loop
        self._names = list(branches)
        self._ids = list(branches.values())
        self._path = path
        self._shareable = shareable
        self._progress = reporting(progress)
        self._states: dict[str, BranchState] = {}
        self._writer: TensorWriter | None = None
        self._given_up = False

    async def run(self) -> Saved:
        """Writes it. Raises SnapshotError where it cannot be written; the file at the path is then what it was."""
        try:
            async with CellHold(self._loop, CellCall(self._take, _let_go, self._told)) as taken:
                saved = await self._write(taken)
                await self._loop.call(lambda engine: engine.unpin(taken.id))
                return saved
        except GeneratorExit:  # the coroutine is torn down: nothing can be awaited any more
            self._give_up()
            raise
        except BaseException as error:
            await in_thread(self._loop, self._give_up)
            if isinstance(error, OSError):
                reason = error.strerror or str(error)
                raise SnapshotError(f"{self._path} cannot be written: {reason}; what was there is unchanged") from error
            raise

    def _take(self, engine: StepEngine, cells: CellStore) -> Taken:
        arrays = cell_arrays(cells.cell_arrays)
        hold, images = engine.pin(self._ids)
        lacks = engine.pinned_dropped_groups(hold.id, 0, hold.rows)
        states = states_of(hold.id, hold.rows, engine, cells)
        if self._shareable:
            return Taken(hold.id, hold.rows, images, lanes_of(arrays), Lanes(hold.rows, PAGE), lacks, states)
        return Taken(hold.id, hold.rows, images, arrays, None, lacks, states)

    def _told(self, taken: Taken) -> None:
        """On the event loop, which knows now what the engine did until then."""
        for name, branch, image in zip(self._names, self._ids, taken.images, strict=True):
            history = self._storage.states[branch]
            tokens = image.tokens
            self._states[name] = BranchState(
                tokens=tokens,
                rows=image.rows,
                rng_stream=image.rng_stream,
                forks=image.forks,
                next_logits=image.next_logits,
                forgotten=image.forgotten,
                exact_from=image.exact_from,
                conversation=(history.coming or history.conversation).cut(len(tokens)),
                marks={name: mark.length for name, mark in history.marks.items() if mark.length <= len(tokens)},
                output=self._storage.grammars.saved_output(image),
            )

    async def _write(self, taken: Taken) -> Saved:
        rows, step = taken.rows, max(1, SLICE_BYTES // taken.arrays[-1].end)
        writer = await in_thread(self._loop, partial(self._begin, taken))
        for first in range(0, rows, step):
            part = await self._loop.run(CellCall(partial(read_rows, taken.id, first, min(step, rows - first))))
            lacks = np.zeros(len(part), np.uint8) if taken.lanes else taken.lacks[first : first + step]
            await in_thread(self._loop, partial(append_cells, writer, taken.arrays, part, lacks))
            self._progress(writer.written, writer.nbytes)
        if taken.lanes is not None:
            await in_thread(self._loop, partial(append_padding, writer, taken.lanes, taken.arrays))
        for some in taken.states.slices():
            read = await self._loop.run(CellCall(partial(read_states, taken.id, some)))
            await in_thread(self._loop, partial(append_states, writer, taken.states, read))
            self._progress(writer.written, writer.nbytes)
        await in_thread(self._loop, writer.finish)
        self._progress(writer.nbytes, writer.nbytes)
        return Saved(self._path, writer.nbytes, rows)

    def _begin(self, taken: Taken) -> TensorWriter:
        key = self._storage.model_key()
        self._writer = begin_file(self._path, key, taken.arrays, taken.lacks, self._states, taken.lanes, taken.states)
        if self._given_up:
            self._writer.discard()
        return self._writer

    def _give_up(self) -> None:
        self._given_up = True
        if self._writer is not None:
            self._writer.discard()


def read_rows(hold: int, first: int, count: int, engine: StepEngine, cells: CellStore) -> Bytes:
    """Rows of a hold, uint8 [count, bytes of a cell]."""
    return cells.read_cells(engine.pinned_cells(hold, first, count))


def write_rows(hold: int, first: int, rows: Bytes, lacks: Lacks, engine: StepEngine, cells: CellStore) -> None:
    """Writes rows of a hold, but for what they lack."""
    cells.write_cells(engine.pinned_cells(hold, first, len(rows)), rows)
    if lacks.any():
        engine.discard(hold, first, lacks)


def _let_go(worker: Any, taken: Taken) -> None:
    worker.engine.unpin(taken.id)
