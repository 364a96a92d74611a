"""Cells of branches that are offloaded from the cache to memory or a file until a branch's next command."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import xxhash

from .._aio.lock import Lock
from .._engine.commands import CellsCall, EngineCall
from .._engine.loop import in_thread
from .._engine.pinned_cells import PinnedCells
from .._types.errors import ContextFull, SnapshotError
from .layout import (
    CellArray,
    Lacks,
    LayerStates,
    Rows,
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
    from .._engine.interface import CellStore, StepEngine
    from .._engine.loop import StepLoop
    from .._state.branch_state import BranchState, Reloadable


class SliceStore(Protocol):
    """Stores slices of rows in order. Methods raise OSError.

    Attributes:
        at_once: whether all slices take no longer than a part of a forward: then they are copied on the step loop's
            thread, else in threads, each between two forwards.
    """

    at_once: bool

    def put(self, rows: Bytes) -> None:
        """Appends a slice."""

    def get(self, index: int) -> Bytes:
        """Reads the slice of this index."""

    def close(self) -> None:
        """Frees all slices."""


class InMemory:
    """Slices in memory."""

    at_once = True

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

    at_once = False

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - open for as long as it is needed
        self._slices: list[tuple[int, tuple[int, ...], bytes]] = []  # where, shape, digest
        self._end = 0
        self._lock = threading.Lock()  # of the file's position: Windows reads and writes nowhere else

    def put(self, rows: Bytes) -> None:
        """Appends a slice."""
        left, digest = rows.reshape(-1).data, xxhash.xxh3_128_digest(rows.data)
        with self._lock:
            self._file.seek(self._end)
            while left:
                left = left[self._file.write(left) :]
            self._slices.append((self._end, rows.shape, digest))
            self._end += rows.nbytes

    def get(self, index: int) -> Bytes:
        """Reads the slice of this index. Raises OSError if the bytes read differ from those written."""
        at, shape, digest = self._slices[index]
        rows = np.empty(shape, np.uint8)
        with self._lock:
            self._file.seek(at)
            read = self._file.readinto(rows.reshape(-1).data)
        if read != rows.nbytes or xxhash.xxh3_128_digest(rows.data) != digest:
            raise OSError(None, "the bytes are not those that were written")
        return rows

    def close(self) -> None:
        """Frees all slices, and their disk space."""
        self._file.close()


class Slices(NamedTuple):
    """What there is to copy of the rows of a pin, in slices.

    Attributes:
        arrays: arrays of a cell.
        lacks: of each row, the number of groups of layers that it holds nothing of.
        states: recurrent states of the rows.
    """

    arrays: list[CellArray]
    lacks: Lacks
    states: LayerStates

    @classmethod
    def of(cls, hold: Pin, engine: StepEngine, cells: CellStore) -> Slices:
        """Asks the engine."""
        lacks = engine.pinned_dropped_groups(hold.id, 0, hold.rows)
        return cls(cell_arrays(cells.cell_arrays), lacks, states_of(hold.id, hold.rows, engine, cells))

    @property
    def cell_bytes(self) -> int:
        """Bytes of a cell."""
        return self.arrays[-1].end

    def reads(self, hold: int) -> list[Callable[[StepEngine, CellStore], Bytes]]:
        """Calls that each read one slice of a pin."""
        rows = [partial(self._read, hold, first, lacks) for first, lacks in self._rows()]
        return [*rows, *(partial(read_states, hold, some) for some in self.states.slices())]

    def writes(self, hold: int) -> list[Callable[[Bytes, StepEngine, CellStore], None]]:
        """Calls that each write one slice to a pin, in the order of `reads`."""
        rows = [partial(self._write, hold, first, lacks) for first, lacks in self._rows()]
        return [*rows, *(partial(_write_states, hold, some) for some in self.states.slices())]

    def _rows(self) -> list[tuple[int, Lacks]]:
        step = max(1, SLICE_BYTES // self.cell_bytes)
        return [(first, self.lacks[first : first + step]) for first in range(0, len(self.lacks), step)]

    def _read(self, hold: int, first: int, lacks: Lacks, engine: StepEngine, cells: CellStore) -> Bytes:
        return without_dropped(read_rows(hold, first, len(lacks), engine, cells), self.arrays, lacks)

    def _write(self, hold: int, first: int, lacks: Lacks, stored: Bytes, engine: StepEngine, cells: CellStore) -> None:
        write_rows(hold, first, with_zeros(stored, self.arrays, lacks), lacks, engine, cells)


def _write_states(hold: int, some: Rows, stored: Bytes, engine: StepEngine, cells: CellStore) -> None:
    write_states(hold, some, stored, engine, cells)


_NOTHING = Slices([], np.zeros(0, np.uint8), LayerStates((), np.zeros(0, np.int32)))


class OffloadedCells:
    """Cells of branches outside of the cache, from the start of their offload to the end of their reload.

    They are the cells that only these branches have, shared ones once; the branches run nothing, or wait for room.
    Commands of the branches wait for `reload` before they begin. A branch of which more is offloaded later gets that
    back first.

    Attributes:
        rows: number of cells, once they are offloaded.
    """

    def __init__(
        self, loop: StepLoop, branches: Sequence[BranchState], open_store: Callable[[], SliceStore] | None
    ) -> None:
        """Without an `open_store` they are not kept."""
        self._loop = loop
        self._branches = tuple(branches)
        self._before: dict[BranchState, Reloadable | None] = {}  # of those that wait: what was offloaded before
        self._left: set[int] = set()  # those that gave up what they have here, as the step loop's thread has it
        self._open_store = open_store
        self._lock = Lock()
        self._away = False  # by what the engine did
        self._slices = _NOTHING
        self._store: SliceStore | None = None
        self.rows = 0

    @property
    def nbytes(self) -> int:
        """Bytes that are kept."""
        return 0 if self._store is None else self.rows * self._slices.cell_bytes

    @property
    def moves(self) -> bool:
        """Whether they are on their way."""
        return not self._lock.value

    @property
    def belongs(self) -> bool:
        """Whether any branch waits for them."""
        return bool(self._before)

    @property
    def first_back(self) -> Reloadable:
        """What comes back before them: what was offloaded later of a branch that waits for them. Else themselves."""
        cells: Reloadable = self
        while isinstance(cells, OffloadedCells) and (later := cells._offloaded_later()) is not None:
            cells = later
        return cells

    def _offloaded_later(self) -> Reloadable | None:
        return next((branch.offloaded for branch in self._before if branch.offloaded is not self), None)

    def leave(self, branch: BranchState) -> None:
        """A branch does not wait any more, as it was closed; what nobody waits for is freed."""
        before = self._before.pop(branch, None)
        if before is not None:
            before.leave(branch)
        self._close_unwanted()

    async def offload(self) -> int:
        """Offloads the cells; returns the number freed. Raises BranchBusy, BranchClosed, SnapshotError; the branches
        are then as they were."""
        for branch in self._branches:
            self._before[branch], branch.offloaded = branch.offloaded, self
        try:
            async with self._lock:
                self._store = None if self._open_store is None else await in_thread(self._loop, self._open_store)
                if self._store is None or self._store.at_once:
                    return await self._offload_at_once()
                return await self._offload_in_slices(self._store)
        except (OSError, MemoryError) as error:
            raise self._failed("written", error) from error
        finally:
            if not self._away:
                self._over()
            self._close_unwanted()

    async def reload(self) -> None:
        """Brings the cells back into the cache, or has them computed again if they are not kept. Raises ContextFull,
        SnapshotError; they then stay offloaded."""
        while (later := self._offloaded_later()) is not None:
            await later.reload()
        async with self._lock:
            await self._loop.call(lambda _: None)  # what was torn down may have been done all the same
            if self.belongs and (self._store is None or self._store.at_once):
                async with self._loop.pins:
                    await self._loop.run(CellsCall(self._come_back, on_result=lambda _: self._back()))
            elif self.belongs and self._store is not None:
                await self._reload_in_slices(self._store)
        self._close_unwanted()

    async def move(self, open_store: Callable[[], SliceStore]) -> None:
        """Moves cells that are kept into another store. Raises OSError; they then stay where they are."""
        async with self._lock:
            before = self._store
            if before is None:
                return
            after = await in_thread(self._loop, open_store)
            try:
                for index in range(len(self._slices.reads(0))):
                    some = await in_thread(self._loop, partial(before.get, index))
                    await in_thread(self._loop, partial(after.put, some))
            except BaseException:
                after.close()
                raise
            self._store = after
            before.close()
        self._close_unwanted()

    def lose(self) -> bool:
        """Frees the store: the cells are computed again in place of being brought back. Returns False while they are on
        their way. Idempotent."""
        if not self.moves:
            self._close()
        return not self.moves

    async def drop(self, branch: BranchState) -> None:
        """Gives up what one branch has here, for good: the branch needs it no more. Others get theirs back."""
        while (later := branch.offloaded) not in (None, self):
            assert later is not None
            await later.drop(branch)
        async with self._lock:
            await self._loop.call(lambda _: None)  # as for `reload`
            if branch.offloaded is self:
                await self._loop.call(partial(self._drop, branch.id), on_result=lambda _: self._dropped(branch))
        self._close_unwanted()

    def _drop(self, branch: int, engine: StepEngine) -> None:
        self._left.add(branch)
        engine.reload(branch, None)

    def _dropped(self, branch: BranchState) -> None:
        branch.offloaded = self._before.pop(branch)

    async def _offload_at_once(self) -> int:
        async with self._loop.pins:
            return await self._loop.run(CellsCall(self._go, self._undo_go, self._gone))

    def _go(self, engine: StepEngine, cells: CellStore) -> int:
        hold = engine.pin_unshared(self._ids)
        try:
            if hold.rows:
                self._slices = Slices.of(hold, engine, cells)
                if self._store is not None:
                    for read in self._slices.reads(hold.id):
                        self._store.put(read(engine, cells))
                engine.offload(self._ids, hold.id)
        finally:
            engine.unpin(hold.id)
        return hold.rows

    def _undo_go(self, worker: Worker, rows: int) -> None:
        if not rows:
            return
        try:
            self._come_back(worker.engine, worker.cells)
        except ContextFull:
            self._lose(worker.engine)
        worker.report(self._back)

    def _come_back(self, engine: StepEngine, cells: CellStore) -> None:
        store = self._store
        if store is None or not self._n_wanted(engine):
            return self._lose(engine)
        hold = engine.reserve(len(self._slices.lacks))
        try:
            for index, write in enumerate(self._slices.writes(hold.id)):
                write(store.get(index), engine, cells)
            self._reload_cells(hold.id, engine)
        finally:
            engine.unpin(hold.id)

    async def _offload_in_slices(self, store: SliceStore) -> int:
        take = EngineCall(lambda engine: engine.pin_unshared(self._ids), self._release)
        async with PinnedCells(self._loop, take) as hold:
            if hold.rows:
                self._slices = await self._loop.run(CellsCall(partial(Slices.of, hold)))
                for read in self._slices.reads(hold.id):
                    await in_thread(self._loop, partial(store.put, await self._loop.run(CellsCall(read))))
                away = EngineCall(partial(self._offload_cells, hold), self._undo, lambda hold: self._gone(hold.rows))
                await self._loop.run(away)
                await self._loop.call(lambda engine: engine.unpin(hold.id))
            return hold.rows

    async def _reload_in_slices(self, store: SliceStore) -> None:
        if not await self._loop.call(self._n_wanted):
            return await self._loop.call(self._lose, on_result=lambda _: self._back())
        reserve = EngineCall(lambda engine: engine.reserve(len(self._slices.lacks)), self._release)
        async with PinnedCells(self._loop, reserve) as hold:
            for index, write in enumerate(self._slices.writes(hold.id)):
                try:
                    stored = await in_thread(self._loop, partial(store.get, index))
                except (OSError, MemoryError) as error:
                    raise self._failed("read", error) from error
                await self._loop.run(CellsCall(partial(write, stored)))
            await self._loop.run(EngineCall(partial(self._reload_cells, hold.id), on_result=lambda _: self._back()))

    @property
    def _ids(self) -> list[int]:
        return [branch.id for branch in self._branches]

    def _offload_cells(self, hold: Pin, engine: StepEngine) -> Pin:
        engine.offload(self._ids, hold.id)
        return hold

    def _undo(self, worker: Worker, hold: Pin) -> None:
        self._reload_cells(hold.id, worker.engine)
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
        live = set(engine.live()) - self._left
        return [branch for branch in self._ids if branch in live]

    def _gone(self, rows: int) -> None:
        self._away = rows > 0
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

    def _close_unwanted(self) -> None:
        """Frees what nobody waits for: branches may be closed while their cells are on their way."""
        if not self._before and not self.moves:
            self._close()

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _failed(self, how: str, error: OSError | MemoryError) -> SnapshotError:
        names = ", ".join(map(str, self._ids))
        whose = f"branch {names}" if len(self._branches) == 1 else f"branches {names}"
        return SnapshotError(
            f"the cells of {whose} cannot be {how}: {getattr(error, 'strerror', None) or error}; "
            + ("they stay in the cache" if how == "written" else "begin another branch with its tokens")
        )

    @staticmethod
    def _release(worker: Worker, hold: Pin) -> None:
        worker.engine.unpin(hold.id)
