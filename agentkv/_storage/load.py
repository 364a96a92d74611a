"""Loading branches: cells are read from the file or mapped, or recomputed from the tokens if the file does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .._engine.commands import CellsCall, EngineCall
from .._engine.loop import in_thread
from .._engine.pinned_cells import PinnedCells
from .._types.errors import InvalidInput, SnapshotMismatch
from .._types.log import log
from .feed import feed
from .layout import BranchImage, CellArray, LayerStates, ModelKey, alignment, cell_arrays, write_states
from .reader import SnapshotFile
from .save import SLICE_BYTES, Progress, StorageDeps, checked_progress, write_rows

if TYPE_CHECKING:
    from agentkv_runtime.engine import Pin, StoredBranch

    from .._engine.interface import CellStore, StepEngine
    from .._engine.loop import StepLoop


LANES_AT_ONCE = 32  # checked between two checks for cancellation


async def check_rows(loop: StepLoop, file: SnapshotFile, arrays: Sequence[CellArray], progress: Progress) -> None:
    """Compares the digests of all arrays of cells. Raises SnapshotError."""
    for first in range(0, len(arrays), LANES_AT_ONCE):
        await in_thread(loop, partial(file.check_lanes, arrays[first : first + LANES_AT_ONCE]))
        progress(file.nbytes * first // len(arrays), file.nbytes)


async def copy_rows(
    loop: StepLoop, file: SnapshotFile, hold: Pin, arrays: Sequence[CellArray], progress: Progress
) -> None:
    """Copies a file's first rows into the cells of a pin, all of them; with the last of the file's rows their digests
    are compared. Raises SnapshotError."""
    step = max(1, SLICE_BYTES // arrays[-1].end)
    for first in range(0, hold.rows, step):
        rows = await in_thread(loop, partial(file.next_cells, min(step, hold.rows - first), arrays))
        lacks = file.lacks[first : first + len(rows)]
        await loop.run(CellsCall(partial(write_rows, hold.id, first, rows, lacks)))
        progress(file.nbytes * (first + len(rows)) // file.rows, file.nbytes)


async def map_rows(
    loop: StepLoop, file: SnapshotFile, hold: Pin, lanes: Sequence[CellArray], progress: Progress
) -> int | None:
    """Checks a file and maps its first rows into the cells of a pin, all of them. Raises SnapshotError, InvalidInput.

    Returns the number of leading rows that are pages of the file; the others are copies. None if the cells are not
    contiguous: nothing was written then.
    """
    await check_rows(loop, file, lanes, progress)
    offsets = file.offsets(lanes)

    def into_cells(engine: StepEngine, store: CellStore) -> int | None:
        cells = engine.pinned_cells(hold.id, 0, hold.rows)
        if not cells or list(cells) != list(range(cells[0], cells[0] + len(cells))):
            return None
        mapped = store.map_cells(cells[0], len(cells), file.fileno(), offsets)
        if file.lacks.any():
            engine.discard(hold.id, 0, file.lacks[: hold.rows])
        return mapped

    mapped = await loop.run(CellsCall(into_cells))
    progress(file.nbytes, file.nbytes)
    return mapped


async def copy_states(loop: StepLoop, file: SnapshotFile, hold: Pin, states: LayerStates) -> None:
    """Copies a file's states into the cells of a pin. Raises SnapshotError."""
    for some in states.slices():
        read = await in_thread(loop, partial(file.next_states, len(some), states))
        await loop.run(CellsCall(partial(write_states, hold.id, some, read)))


@dataclass(frozen=True, slots=True)
class Loaded:
    """Where the cells of a loaded branch came from.

    Attributes:
        path: path of the file.
        reused: tokens whose keys and values came from the file.
        shared: of these, tokens whose cells are pages of the file, in memory once for all processes that load it with
            `shared`. The last ones, up to a page, are copies; all are if the cache had no contiguous free cells.
        recomputed: tokens that were fed to the model again.
        mismatch: why they were; empty if none was.
    """

    path: Path
    reused: int
    recomputed: int
    mismatch: str
    shared: int = 0


Restored: TypeAlias = dict[str, tuple[int, Loaded]]
"""Branch ids and sources of cells, by the branches' names in the file."""


class LoadOperation:
    """Loads the branches of one file into a Context."""

    def __init__(
        self, storage: StorageDeps, path: Path, shared: bool, recompute: bool, progress: Progress | None
    ) -> None:
        self._storage = storage
        self._loop = storage.loop
        self._path = path
        self._shared = shared
        self._recompute = recompute
        self._progress = checked_progress(progress)

    async def run(self, *, one: bool) -> Restored:
        """Loads all branches or none; with `one` the file must have exactly one. Raises InvalidInput, SnapshotError,
        SnapshotMismatch."""
        file = await in_thread(self._loop, partial(SnapshotFile, self._path))
        if one and len(file.branches) != 1:
            names = ", ".join(map(repr, list(file.branches)[:8]))
            raise InvalidInput(f"{self._path} holds {len(file.branches)} branches ({names}); use load_all")
        if self._shared and not file.shareable:
            raise SnapshotMismatch(
                f"{self._path} was saved without shareable=True, so that its cells cannot be mapped; load it without "
                "shared, and save the branches again"
            )
        arrays = file.parts(await self._loop.run(CellsCall(lambda _, cells: cell_arrays(cells.cell_arrays))))
        mismatch = await self._mismatch(file, arrays)
        if mismatch and not self._recompute:
            raise SnapshotMismatch(
                f"{self._path} does not fit this Context: {mismatch}; open the Context as it was when the file was "
                "saved, or pass recompute=True to feed the tokens again"
            )
        for state in file.branches.values():
            self._storage.adapters.ids(state.adapters)  # raises for one that is not loaded, before anything is made
        branches = await (self._fed_again(file, mismatch) if mismatch else self._filled(file, arrays))
        log.info("branches loaded", path=str(self._path), branches=len(branches), recomputed=mismatch or None)
        return branches

    async def _mismatch(self, file: SnapshotFile, arrays: list[CellArray]) -> str:
        """Describes how the file differs from this Context; empty if its cells can be used. Raises SnapshotMismatch."""
        mine: ModelKey = await in_thread(self._loop, self._storage.model_key)
        theirs = file.key
        if theirs.tokenizer != mine.tokenizer:
            raise SnapshotMismatch(
                f"{self._path} was saved with another tokenizer, in which its tokens mean something else; begin a "
                "branch anew from the messages or the text"
            )
        if theirs.model != mine.model:
            return "it was saved from another model"
        for name in ("backend", "kv_dtype", "window"):
            if getattr(theirs, name) != getattr(mine, name):
                one, other = getattr(theirs, name) or "none", getattr(mine, name) or "none"
                return f"its {name} is {one!r}, and here it is {other!r}"
        if {array.spec for array in arrays} != file.arrays:
            return "its cells are laid out otherwise"
        file.check_rows(arrays)
        return ""

    async def _filled(self, file: SnapshotFile, arrays: list[CellArray]) -> Restored:
        align = alignment(arrays) if self._shared else 0
        kept = await self._loop.run(CellsCall(lambda _, cells: cell_arrays(cells.state_arrays)))
        states = await in_thread(self._loop, partial(file.states, kept))
        reserve = EngineCall(
            lambda engine: engine.reserve(file.rows, align), lambda worker, hold: worker.engine.unpin(hold.id)
        )
        try:
            async with PinnedCells(self._loop, reserve) as hold:
                mapped = None
                if self._shared:
                    mapped = await map_rows(self._loop, file, hold, arrays, self._progress)
                if mapped is None:
                    await copy_rows(self._loop, file, hold, arrays, self._progress)
                await copy_states(self._loop, file, hold, states)
                stored = await in_thread(self._loop, lambda: [self._stored(state) for state in file.branches.values()])
                return await self._entered(file, hold, stored, mapped or 0)
        except InvalidInput as error:  # what the file says cannot be
            raise file.damaged(str(error)) from error

    async def _entered(self, file: SnapshotFile, hold: Pin, stored: list[StoredBranch], mapped: int) -> Restored:
        def undo(worker: Any, ids: list[int]) -> None:
            for branch in ids:
                worker.close(branch)

        def restore(engine: StepEngine) -> list[int]:
            ids = engine.restore(hold.id, stored)
            engine.unpin(hold.id)  # before cells are counted: only the branches have them then
            return ids

        def told(ids: list[int]) -> None:
            for branch, state in zip(ids, file.branches.values(), strict=True):
                self._converse(branch, state)

        ids = await self._loop.call(restore, undo, told)
        return {
            name: (id, self._mapped(state, mapped))
            for id, (name, state) in zip(ids, file.branches.items(), strict=True)
        }

    def _mapped(self, state: BranchImage, mapped: int) -> Loaded:
        """Loaded of a branch with cells from the file, whose first `mapped` rows are pages of the file."""
        first, count = state.rows[:, 0], state.rows[:, 2]
        shared = int(np.clip(mapped - first, 0, count).sum())
        return Loaded(self._path, int(count.sum()), 0, "", shared)

    def _stored(self, state: BranchImage) -> StoredBranch:
        from agentkv_runtime.engine import StoredBranch

        return StoredBranch(
            state.tokens,
            state.rows,
            rng_stream=state.rng_stream,
            forks=state.forks,
            next_logits=state.next_logits,
            forgotten=state.forgotten,
            exact_from=state.exact_from,
            adapters=self._storage.adapters.ids(state.adapters),
            **self._storage.grammars.restored_output(state.output),
        )

    async def _fed_again(self, file: SnapshotFile, mismatch: str) -> Restored:
        branches: Restored = {}
        of = sum(len(state.tokens) for state in file.branches.values())
        done = 0
        try:
            for name, state in file.branches.items():
                id, reused = await feed(self._storage, state)
                branches[name] = id, Loaded(self._path, 0, len(state.tokens) - reused, mismatch)
                done += len(state.tokens)
                self._progress(done, of)
        except BaseException:
            for id, _ in branches.values():
                self._loop.close(id)
            raise
        return branches

    def _converse(self, branch: int, state: BranchImage) -> None:
        self._storage.states[branch].restore(state.conversation, state.marks)
