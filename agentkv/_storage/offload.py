"""Cells of branches that are offloaded from the cache to memory or a file until a branch's next command."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import xxhash

from .._aio.lock import Lock
from .._engine.commands import CellsCall, EngineCall
from .._engine.loop import in_thread
from .._engine.pinned_cells import PinnedCells
from .._types.errors import SnapshotError
from .layout import (
    CellArray,
    Lacks,
    LayerStates,
    cell_arrays,
    read_states,
    states_of,
    with_zeros,
    without_dropped,
    write_states,
)
from .save import SLICE_BYTES, read_rows, write_rows

if TYPE_CHECKING:
    from agentkv_runtime.engine import Pin
    from agentkv_runtime.tensor_file import Bytes

    from .._engine.commands import Worker
    from .._engine.interface import StepEngine
    from .._engine.loop import StepLoop
    from .._state.branch_state import BranchState, Reloadable


class SliceStore(Protocol):
    """Stores slices of rows in order. Called in threads. Methods raise OSError."""

    def put(self, rows: Bytes) -> None:
        """Appends a slice."""

    def get(self, index: int) -> Bytes:
        """Reads the slice of this index."""

    def close(self) -> None:
        """Frees all slices."""


class InMemory:
    """Slices in memory."""

    def __init__(self) -> None:
        self._slices: list[Bytes] = []

    def put(self, rows: Bytes) -> None:
        """Appends a slice."""
        self._slices.append(rows)

    def get(self, index: int) -> Bytes:
        """The slice of this index."""
        return self._slices[index]

    def close(self) -> None:
        """Frees all slices."""
        self._slices.clear()


class InFile:
    """Slices in an unnamed temporary file: its disk space is freed when the process ends, however it does."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - open for as long as it is needed
        self._slices: list[tuple[int, tuple[int, ...], bytes]] = []  # where, shape, digest
        self._end = 0

    def put(self, rows: Bytes) -> None:
        """Appends a slice."""
        left = rows.reshape(-1).data
        at = self._end
        while left:
            written = os.pwrite(self._file.fileno(), left, at)
            left, at = left[written:], at + written
        self._slices.append((self._end, rows.shape, xxhash.xxh3_128_digest(rows.data)))
        self._end = at

    def get(self, index: int) -> Bytes:
        """Reads the slice of this index. Raises OSError if the bytes read differ from those written."""
        at, shape, digest = self._slices[index]
        rows = np.empty(shape, np.uint8)
        read = os.preadv(self._file.fileno(), [rows.reshape(-1).data], at)
        if read != rows.nbytes or xxhash.xxh3_128_digest(rows.data) != digest:
            raise OSError(None, "the bytes are not those that were written")
        return rows

    def close(self) -> None:
        """Frees all slices, and their disk space."""
        self._file.close()


class OffloadedCells:
    """Cells of branches outside of the cache, from the start of their offload to the end of their reload.

    They are the cells that only these branches have, shared ones once; the branches run nothing, or wait for room.
    Commands of the branches wait for `reload` before they begin. A branch of which more is offloaded later gets that
    back first.

    Attributes:
        rows: number of cells, once they are offloaded.
        cell_bytes: bytes of each.
        is_kept: whether they are kept at all; others are computed again in place of being brought back.
    """

    def __init__(
        self, loop: StepLoop, branches: Sequence[BranchState], open_store: Callable[[], SliceStore] | None
    ) -> None:
        """Without an `open_store` they are not kept."""
        self._loop = loop
        self._branches = tuple(branches)
        self._before: dict[BranchState, Reloadable | None] = {}  # of those that wait: what was offloaded before
        self._open_store = open_store
        self._lock = Lock()
        self._away = False  # by what the engine did
        self._arrays: list[CellArray] = []
        self._lacks: Lacks = np.zeros(0, np.uint8)  # of the rows
        self._states = LayerStates((), np.zeros(0, np.int32))
        self._step = 1
        self._store: SliceStore | None = None
        self.rows = 0
        self.cell_bytes = 0

    @property
    def is_kept(self) -> bool:
        return self._store is not None

    @property
    def moves(self) -> bool:
        """Whether they are on their way."""
        return not self._lock.value

    @property
    def belongs(self) -> bool:
        """Whether any branch waits for them."""
        return bool(self._before)

    def leave(self, branch: BranchState) -> None:
        """A branch does not wait any more, as it was closed; what nobody waits for is freed."""
        before = self._before.pop(branch, None)
        if before is not None:
            before.leave(branch)
        if not self._before and not self.moves:
            self._close()

    async def offload(self) -> int:
        """Offloads the cells; returns the number freed. Raises BranchBusy, BranchClosed, SnapshotError; the branches
        are then as they were."""
        for branch in self._branches:
            self._before[branch], branch.offloaded = branch.offloaded, self
        ids = [branch.id for branch in self._branches]
        take = EngineCall(lambda engine: engine.pin_unshared(ids), self._release)
        try:
            async with self._lock, PinnedCells(self._loop, take) as hold:
                if hold.rows:
                    await self._put(hold)
                    await self._loop.run(
                        EngineCall(partial(self._offload_cells, hold.id), self._undo, lambda _: self._gone(hold.rows))
                    )
                    await self._loop.call(lambda engine: engine.unpin(hold.id))
                return hold.rows
        except OSError as error:
            raise self._failed("written", error) from error
        finally:
            if not self._away:
                self._over()

    async def reload(self) -> None:
        """Brings the cells back into the cache, or has them computed again if they are not kept. Raises ContextFull,
        SnapshotError; they then stay offloaded."""
        for branch in list(self._before):
            while branch.offloaded is not None and branch.offloaded is not self:
                await branch.offloaded.reload()  # what was offloaded later comes back first
        async with self._lock:
            await self._loop.call(lambda _: None)  # what was torn down may have been done all the same
            if not self.belongs:
                return
            store = self._store
            if store is None or not await self._loop.call(self._n_wanted):
                await self._loop.call(self._lose, on_result=lambda _: self._back())
                return
            reserve = EngineCall(lambda engine: engine.reserve(len(self._lacks)), self._release)
            async with PinnedCells(self._loop, reserve) as hold:
                try:
                    await self._get(store, hold)
                except OSError as error:
                    raise self._failed("read", error) from error
                await self._loop.run(EngineCall(partial(self._reload_cells, hold.id), on_result=lambda _: self._back()))
        if not self._before:
            self._close()  # the branches were closed meanwhile

    async def move(self, open_store: Callable[[], SliceStore]) -> None:
        """Moves cells that are kept into another store. Raises OSError; they then stay where they are."""
        async with self._lock:
            before = self._store
            if before is None:
                return
            after = await in_thread(self._loop, open_store)
            try:
                for index in range(-(-len(self._lacks) // self._step) + len(list(self._states.slices()))):
                    after_slice = await in_thread(self._loop, partial(before.get, index))
                    await in_thread(self._loop, partial(after.put, after_slice))
            except BaseException:
                after.close()
                raise
            self._store = after
            before.close()

    def lose(self) -> None:
        """Frees the store: the cells are computed again in place of being brought back. Idempotent."""
        if not self.moves:
            self._close()

    async def _get(self, store: SliceStore, hold: Pin) -> None:
        for index, first in enumerate(range(0, len(self._lacks), self._step)):
            lacks = self._lacks[first : first + self._step]
            rows = with_zeros(await in_thread(self._loop, partial(store.get, index)), self._arrays, lacks)
            await self._loop.run(CellsCall(partial(write_rows, hold.id, first, rows, lacks)))
        for index, some in enumerate(self._states.slices(), start=-(-len(self._lacks) // self._step)):
            states = await in_thread(self._loop, partial(store.get, index))
            await self._loop.run(CellsCall(partial(write_states, hold.id, some, states)))

    async def _put(self, hold: Pin) -> None:
        self._arrays = await self._loop.run(CellsCall(lambda _, cells: cell_arrays(cells.cell_arrays)))
        self._lacks = await self._loop.run(
            EngineCall(lambda engine: engine.pinned_dropped_groups(hold.id, 0, hold.rows))
        )
        self.cell_bytes = self._arrays[-1].end
        if self._open_store is None:
            return
        self._step = max(1, SLICE_BYTES // self.cell_bytes)
        self._store = store = await in_thread(self._loop, self._open_store)
        for first in range(0, hold.rows, self._step):
            lacks = self._lacks[first : first + self._step]
            rows = await self._loop.run(CellsCall(partial(read_rows, hold.id, first, len(lacks))))
            await in_thread(self._loop, partial(store.put, without_dropped(rows, self._arrays, lacks)))
        self._states = await self._loop.run(CellsCall(partial(states_of, hold.id, hold.rows)))
        for some in self._states.slices():
            states = await self._loop.run(CellsCall(partial(read_states, hold.id, some)))
            await in_thread(self._loop, partial(store.put, states))

    def _offload_cells(self, hold: int, engine: StepEngine) -> int:
        engine.offload([branch.id for branch in self._branches], hold)
        return hold

    def _undo(self, worker: Worker, hold: int) -> None:
        self._reload_cells(hold, worker.engine)
        worker.report(self._back)

    def _reload_cells(self, hold: int, engine: StepEngine) -> None:
        for branch in self._live(engine):
            engine.reload(branch, hold)
        engine.unpin(hold)

    def _lose(self, engine: StepEngine) -> None:
        for branch in self._live(engine):
            engine.reload(branch, None)

    def _n_wanted(self, engine: StepEngine) -> int:
        """Number of rows that some branch still has, each branch's counted."""
        return sum(engine.n_offloaded(branch) for branch in self._live(engine))

    def _live(self, engine: StepEngine) -> list[int]:
        live = set(engine.live())
        return [branch.id for branch in self._branches if branch.id in live]

    def _gone(self, rows: int) -> None:
        self._away = True
        self.rows = rows

    def _back(self) -> None:
        self._away = False
        self._over()

    def _over(self) -> None:
        """Detaches from the branches and frees the store at once: an exception's traceback may keep this object alive
        for long."""
        for branch, before in self._before.items():
            branch.offloaded = before
        self._before.clear()
        self._close()

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _failed(self, how: str, error: OSError) -> SnapshotError:
        names = ", ".join(str(branch.id) for branch in self._branches)
        whose = f"branch {names}" if len(self._branches) == 1 else f"branches {names}"
        return SnapshotError(
            f"the cells of {whose} cannot be {how}: {error.strerror or error}; "
            + ("they stay in the cache" if how == "written" else "begin another branch with its tokens")
        )

    @staticmethod
    def _release(worker: Worker, hold: Pin) -> None:
        worker.engine.unpin(hold.id)
