"""Branches whose cells wait outside of the cache, in memory or in a file, until the next verb needs them."""

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
from .._engine.commands import Call, CellCall
from .._engine.loop import in_thread
from .._engine.pinned_cells import CellHold
from .._types.errors import SnapshotError
from .layout import CellArray, Lacks, States, cell_arrays, packed, read_states, states_of, unpacked, write_states
from .save import SLICE_BYTES, read_rows, write_rows

if TYPE_CHECKING:
    from agentkv_runtime.engine import Pin
    from agentkv_runtime.tensor_file import Bytes

    from .._engine.commands import Worker
    from .._engine.interface import StepEngine
    from .._engine.loop import StepLoop
    from .._state.branch_state import History


class Store(Protocol):
    """Keeps slices of rows, in their order. Called in threads. Raises OSError."""

    def put(self, rows: Bytes) -> None:
        """The next slice."""

    def get(self, index: int) -> Bytes:
        """One of them."""

    def close(self) -> None:
        """Lets go of them all."""


class InMemory:
    """Slices in memory."""

    def __init__(self) -> None:
        self._slices: list[Bytes] = []

    def put(self, rows: Bytes) -> None:
        """The next slice."""
        self._slices.append(rows)

    def get(self, index: int) -> Bytes:
        """One of them."""
        return self._slices[index]

    def close(self) -> None:
        """Lets go of them all."""
        self._slices.clear()


class InFile:
    """Slices in a file that has no name: it is gone with whoever has it open, however that ends."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - open for as long as it is needed
        self._slices: list[tuple[int, tuple[int, ...], bytes]] = []  # where, shape, digest
        self._end = 0

    def put(self, rows: Bytes) -> None:
        """The next slice."""
        left = rows.reshape(-1).data
        at = self._end
        while left:
            written = os.pwrite(self._file.fileno(), left, at)
            left, at = left[written:], at + written
        self._slices.append((self._end, rows.shape, xxhash.xxh3_128_digest(rows.data)))
        self._end = at

    def get(self, index: int) -> Bytes:
        """One of them. Raises OSError where the disk gives back other bytes."""
        at, shape, digest = self._slices[index]
        rows = np.empty(shape, np.uint8)
        read = os.preadv(self._file.fileno(), [rows.reshape(-1).data], at)
        if read != rows.nbytes or xxhash.xxh3_128_digest(rows.data) != digest:
            raise OSError(None, "the bytes are not those that were written")
        return rows

    def close(self) -> None:
        """Lets go of them all: the disk has their room again."""
        self._file.close()


class Aside:
    """What one branch has outside of the cache, from the begin of its offloading to the end of its return.

    Verbs wait for it (`reload`) before they begin.
    """

    def __init__(self, loop: StepLoop, branch: int, history: History, open_store: Callable[[], Store]) -> None:
        self._loop = loop
        self._branch = branch
        self._history = history
        self._open_store = open_store
        self._lock = Lock()
        self._away = False  # by what the engine did
        self._arrays: list[CellArray] = []
        self._lacks: Lacks = np.zeros(0, np.uint8)  # of the rows
        self._states = States((), np.zeros(0, np.int32))
        self._step = 1
        self._store: Store | None = None

    async def offload(self) -> int:
        """Returns how many cells were freed. Raises BranchBusy, SnapshotError; the branch is then as it was."""
        self._history.aside = self
        take = Call(lambda engine: engine.pin_unshared(self._branch), self._release)
        try:
            async with self._lock, CellHold(self._loop, take) as hold:
                if hold.rows:
                    await self._put(hold)
                    await self._loop.run(
                        Call(partial(self._offload_cells, hold.id), self._undo, lambda _: self._gone())
                    )
                    await self._loop.call(lambda engine: engine.unpin(hold.id))
                return hold.rows
        except OSError as error:
            raise self._failed("written", error) from error
        finally:
            if not self._away:
                self._over()

    async def reload(self) -> None:
        """Raises ContextFull, SnapshotError; the branch then waits on."""
        async with self._lock:
            await self._loop.call(lambda _: None)  # what was torn down may have been done all the same
            if self._history.aside is not self:
                return
            store = self._store
            assert store is not None
            reserve = Call(lambda engine: engine.reserve(len(self._lacks)), self._release)
            async with CellHold(self._loop, reserve) as hold:
                try:
                    await self._get(store, hold)
                except OSError as error:
                    raise self._failed("read", error) from error
                await self._loop.run(Call(partial(self._reload_cells, hold.id), told=lambda _: self._back()))

    async def _get(self, store: Store, hold: Pin) -> None:
        for index, first in enumerate(range(0, len(self._lacks), self._step)):
            lacks = self._lacks[first : first + self._step]
            rows = unpacked(await in_thread(self._loop, partial(store.get, index)), self._arrays, lacks)
            await self._loop.run(CellCall(partial(write_rows, hold.id, first, rows, lacks)))
        for index, some in enumerate(self._states.slices(), start=-(-len(self._lacks) // self._step)):
            states = await in_thread(self._loop, partial(store.get, index))
            await self._loop.run(CellCall(partial(write_states, hold.id, some, states)))

    async def _put(self, hold: Pin) -> None:
        self._arrays = await self._loop.run(CellCall(lambda _, cells: cell_arrays(cells.cell_arrays)))
        self._lacks = await self._loop.run(Call(lambda engine: engine.pinned_dropped_groups(hold.id, 0, hold.rows)))
        self._step = max(1, SLICE_BYTES // self._arrays[-1].end)
        self._store = store = await in_thread(self._loop, self._open_store)
        for first in range(0, hold.rows, self._step):
            lacks = self._lacks[first : first + self._step]
            rows = await self._loop.run(CellCall(partial(read_rows, hold.id, first, len(lacks))))
            await in_thread(self._loop, partial(store.put, packed(rows, self._arrays, lacks)))
        self._states = await self._loop.run(CellCall(partial(states_of, hold.id, hold.rows)))
        for some in self._states.slices():
            states = await self._loop.run(CellCall(partial(read_states, hold.id, some)))
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
        """Nothing is kept any more; whoever raised on the way may keep this object for long."""
        self._history.aside = None
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
