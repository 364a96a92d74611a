"""Branches whose cells are offloaded from the cache to memory or a file until their next command."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
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
    from .._state.branch_state import BranchState


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
    """Cells of one branch outside of the cache, from the start of its offload to the end of its reload.

    Commands of the branch wait for `reload` before they begin.
    """

    def __init__(self, loop: StepLoop, branch: int, history: BranchState, open_store: Callable[[], SliceStore]) -> None:
        self._loop = loop
        self._branch = branch
        self._history = history
        self._open_store = open_store
        self._lock = Lock()
        self._away = False  # by what the engine did
        self._arrays: list[CellArray] = []
        self._lacks: Lacks = np.zeros(0, np.uint8)  # of the rows
        self._states = LayerStates((), np.zeros(0, np.int32))
        self._step = 1
        self._store: SliceStore | None = None

    async def offload(self) -> int:
        """Offloads the cells of this branch alone; returns the number freed. Raises BranchBusy, SnapshotError; the
        branch is then as it was."""
        self._history.offloaded = self
        take = EngineCall(lambda engine: engine.pin_unshared(self._branch), self._release)
        try:
            async with self._lock, PinnedCells(self._loop, take) as hold:
                if hold.rows:
                    await self._put(hold)
                    await self._loop.run(
                        EngineCall(partial(self._offload_cells, hold.id), self._undo, lambda _: self._gone())
                    )
                    await self._loop.call(lambda engine: engine.unpin(hold.id))
                return hold.rows
        except OSError as error:
            raise self._failed("written", error) from error
        finally:
            if not self._away:
                self._over()

    async def reload(self) -> None:
        """Brings the cells back into the cache. Raises ContextFull, SnapshotError; the branch then stays offloaded."""
        async with self._lock:
            await self._loop.call(lambda _: None)  # what was torn down may have been done all the same
            if self._history.offloaded is not self:
                return
            store = self._store
            assert store is not None
            reserve = EngineCall(lambda engine: engine.reserve(len(self._lacks)), self._release)
            async with PinnedCells(self._loop, reserve) as hold:
                try:
                    await self._get(store, hold)
                except OSError as error:
                    raise self._failed("read", error) from error
                await self._loop.run(EngineCall(partial(self._reload_cells, hold.id), on_result=lambda _: self._back()))

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
        self._step = max(1, SLICE_BYTES // self._arrays[-1].end)
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
        engine.offload(self._branch, hold)
        return hold

    def _undo(self, worker: Worker, hold: int) -> None:
        worker.engine.reload(self._branch, hold)
        worker.report(self._back)

    def _reload_cells(self, hold: int, engine: StepEngine) -> None:
        engine.reload(self._branch, hold)
        engine.unpin(hold)

    def _gone(self) -> None:
        self._away = True

    def _back(self) -> None:
        self._away = False
        self._over()

    def _over(self) -> None:
        """Detaches from the branch and frees the store at once: an exception's traceback may keep this object alive for
        long."""
        self._history.offloaded = None
        if self._store is not None:
            self._store.close()

    def _failed(self, how: str, error: OSError) -> SnapshotError:
        return SnapshotError(
            f"the cells of branch {self._branch} cannot be {how}: {error.strerror or error}; "
            + ("it stays in the cache" if how == "written" else "begin another branch with its tokens")
        )

    @staticmethod
    def _release(worker: Worker, hold: Pin) -> None:
        worker.engine.unpin(hold.id)
