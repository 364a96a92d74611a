"""Saving branches: their state at one moment, written while everything else runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .._engine.commands import CellsCall
from .._engine.loop import in_thread
from .._engine.pinned_cells import PinnedCells
from .._types.errors import InvalidInput, SnapshotError
from .._types.show import preview
from .layout import (
    PAGE,
    BranchImage,
    CellArray,
    Lacks,
    LayerStates,
    MappableLayout,
    cell_arrays,
    lanes_of,
    read_states,
    states_of,
)
from .writer import append_cells, append_padding, append_states, begin_file

if TYPE_CHECKING:
    from agentkv_runtime.engine import StoredBranch
    from agentkv_runtime.tensor_file import Bytes, TensorWriter

    from .._engine.interface import CellStore, StepEngine
    from .._engine.loop import StepLoop
    from .._state.adapters import LoadedAdapters
    from .._state.branch_state import BranchStates
    from ..output._compiler import ConstraintCompiler
    from .layout import ModelKey

SLICE_BYTES = 4 << 20  # of cells copied between two forwards: a millisecond or two

Progress: TypeAlias = Callable[[int, int], object]
"""Callback with the bytes done and the bytes in total (tokens when recomputing); called on the event loop."""


@dataclass(frozen=True, slots=True)
class Saved:
    """Result of a save.

    Attributes:
        path: path of the file.
        nbytes: its size in bytes.
        cells: number of cells in it; those that several branches share count once.
    """

    path: Path
    nbytes: int
    cells: int


def checked_progress(progress: object) -> Progress:
    """Returns a progress callback, a no-op for None. Raises InvalidInput for a value that is not callable."""
    if progress is None:
        return lambda done, of: None
    if not callable(progress):
        raise InvalidInput(
            f"progress is {preview(progress)}, but it is called with what is done and what there is in all"
        )
    return progress


@dataclass(frozen=True, slots=True)
class StorageDeps:
    """Services of a Context that saving and loading use.

    Attributes:
        loop: runs commands on cells.
        states: tokens and conversation of each branch.
        grammars: saves and restores constraints.
        model_key: returns the identity that saved cells belong to; called in threads.
        adapters: the LoRA adapters that are loaded.
    """

    loop: StepLoop
    states: BranchStates
    grammars: ConstraintCompiler
    model_key: Callable[[], ModelKey]
    adapters: LoadedAdapters


@dataclass(frozen=True, slots=True)
class PinnedBranches:
    """Branches as they are at one moment, and a pin on their cells."""

    id: int  # of the pin
    rows: int
    images: Sequence[StoredBranch]
    arrays: Sequence[CellArray]
    lanes: MappableLayout | None  # set if the arrays are lanes
    lacks: Lacks  # of the rows
    states: LayerStates


def pinned_branches(
    pin: int, rows: int, images: Sequence[StoredBranch], shareable: bool, engine: StepEngine, cells: CellStore
) -> PinnedBranches:
    """The first `rows` rows of a pin, as a file stores them."""
    arrays = cell_arrays(cells.cell_arrays)
    lacks = engine.pinned_dropped_groups(pin, 0, rows)
    states = states_of(pin, rows, engine, cells)
    if shareable:
        return PinnedBranches(pin, rows, images, lanes_of(arrays), MappableLayout(rows, PAGE), lacks, states)
    return PinnedBranches(pin, rows, images, arrays, None, lacks, states)


Slice: TypeAlias = tuple["Callable[[StepEngine, CellStore], Bytes]", "Callable[[TensorWriter, Bytes], None]"]


def slices(taken: PinnedBranches, slice_bytes: int) -> Iterator[Slice]:
    """The cells and states of a pin in the order of the file: what reads a slice of them between two forwards, and what
    appends that to the file, in a thread."""
    rows, step = taken.rows, max(1, slice_bytes // taken.arrays[-1].end)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        yield partial(read_rows, taken.id, first, count), partial(_append_cells, taken, first)
    for some in taken.states.slices():
        yield partial(read_states, taken.id, some), lambda writer, read: append_states(writer, taken.states, read)


def _append_cells(taken: PinnedBranches, first: int, writer: TensorWriter, part: Bytes) -> None:
    end = first + len(part)
    lacks = np.zeros(len(part), np.uint8) if taken.lanes else taken.lacks[first:end]
    append_cells(writer, taken.arrays, part, lacks)
    if taken.lanes is not None and end == taken.rows:
        append_padding(writer, taken.lanes, taken.arrays)


class SaveOperation:
    """Writes one file of saved branches."""

    def __init__(
        self, storage: StorageDeps, branches: Mapping[str, int], path: Path, shareable: bool, progress: Progress | None
    ) -> None:
        self._storage = storage
        self._loop = storage.loop
        self._names = list(branches)
        self._ids = list(branches.values())
        self._path = path
        self._shareable = shareable
        self._progress = checked_progress(progress)
        self._states: dict[str, BranchImage] = {}
        self._writer: TensorWriter | None = None
        self._given_up = False

    async def run(self) -> tuple[Saved, dict[str, bytes]]:
        """Writes the file. Returns what was saved, and the tokens (int32) of the branches by name.

        Raises SnapshotError if it cannot be written; an existing file at the path is then unchanged.
        """
        try:
            async with PinnedCells(self._loop, CellsCall(self._take, _let_go, self._told)) as taken:
                saved = await self._write(taken)
                await self._loop.call(lambda engine: engine.unpin(taken.id))
                return saved, {name: image.tokens.tobytes() for name, image in self._states.items()}
        except GeneratorExit:  # the coroutine is torn down: nothing can be awaited any more
            self._give_up()
            raise
        except BaseException as error:
            await in_thread(self._loop, self._give_up)
            if isinstance(error, OSError):
                reason = error.strerror or str(error)
                raise SnapshotError(f"{self._path} cannot be written: {reason}; what was there is unchanged") from error
            raise

    def _take(self, engine: StepEngine, cells: CellStore) -> PinnedBranches:
        hold, images = engine.pin(self._ids)
        return pinned_branches(hold.id, hold.rows, images, self._shareable, engine, cells)

    def _told(self, taken: PinnedBranches) -> None:
        """Captures conversations and marks; runs on the event loop when it has applied the engine's changes up to the
        pin."""
        for name, branch, image in zip(self._names, self._ids, taken.images, strict=True):
            history = self._storage.states[branch]
            tokens = image.tokens
            self._states[name] = BranchImage(
                tokens=tokens,
                rows=image.rows,
                rng_stream=image.rng_stream,
                forks=image.forks,
                next_logits=image.next_logits,
                forgotten=image.forgotten,
                exact_from=image.exact_from,
                adapters=self._storage.adapters.digests(image.adapters),
                conversation=(history.pending_conversation or history.conversation).cut(len(tokens)),
                marks={name: mark.length for name, mark in history.marks.items() if mark.length <= len(tokens)},
                output=self._storage.grammars.saved_output(image),
            )

    async def _write(self, taken: PinnedBranches) -> Saved:
        writer = await in_thread(self._loop, partial(self._begin, taken))
        for read, append in slices(taken, SLICE_BYTES):
            part = await self._loop.run(CellsCall(read))
            await in_thread(self._loop, partial(append, writer, part))
            self._progress(writer.written, writer.nbytes)
        await in_thread(self._loop, writer.finish)
        self._progress(writer.nbytes, writer.nbytes)
        return Saved(self._path, writer.nbytes, taken.rows)

    def _begin(self, taken: PinnedBranches) -> TensorWriter:
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
    """Reads rows of a pin, uint8 [count, bytes of a cell]."""
    return cells.read_cells(engine.pinned_cells(hold, first, count))


def write_rows(hold: int, first: int, rows: Bytes, lacks: Lacks, engine: StepEngine, cells: CellStore) -> None:
    """Writes rows of a pin, uint8 [n, bytes of a cell], and discards their dropped groups."""
    cells.write_cells(engine.pinned_cells(hold, first, len(rows)), rows)
    if lacks.any():
        engine.discard(hold, first, lacks)


def _let_go(worker: Any, taken: PinnedBranches) -> None:
    worker.engine.unpin(taken.id)
