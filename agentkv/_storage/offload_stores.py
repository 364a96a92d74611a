"""Where cells are kept that branches gave up for others: in memory, then on disk, or nowhere, to be computed again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio

from .._engine.commands import CellsCall
from .._types.errors import SnapshotError
from .._types.log import log
from .offload import InFile, InMemory, OffloadedCells, SliceStore
from .rates import ReturnTimes, Way

if TYPE_CHECKING:
    from .._aio.background import BackgroundTasks
    from .._engine.loop import StepLoop
    from .._state.branch_state import BranchState, Reloadable
    from .._types.offload import Offload

_SOON_S = 1e-6  # for cells that nothing is known of
_ON_THEIR_WAY_S = 0.05  # until a next look at cells that are neither here nor there
_STEPS_LOOKED_AT = 16
_LEAST_ROWS = 16  # of a step that says what computing costs


class OffloadCounts(NamedTuple):
    """Counters, under their names in `Stats`."""

    offloads: int
    offload_memory_bytes: int
    offload_disk_bytes: int


class OffloadStores:
    """Offloads within the bounds of `kv.Offload`. One offload at a time; reloads at any time."""

    def __init__(self, loop: StepLoop, policy: Offload, background: BackgroundTasks) -> None:
        self._loop = loop
        self._count = 0
        self._policy = policy
        self._background = background
        self._kept: dict[OffloadedCells, tuple[Way, float]] = {}  # from where they come back, and since when
        self._times = ReturnTimes()
        self._cell_bytes = 0
        self._learned = 0.0  # when the last step began that said what computing costs
        self._expires = False  # whether a task looks after `ttl`
        self._told = False  # that cells cannot be written

    def has(self, cells: Reloadable | None) -> bool:
        """Whether these are cells that were offloaded here."""
        return cells in self._kept

    def counts(self) -> OffloadCounts:
        """The counters at this moment."""
        return OffloadCounts(self._count, self._bytes_of("memory"), self._bytes_of("disk"))

    def _bytes_of(self, way: Way) -> int:
        """Bytes of the cells that come back this way."""
        return sum(cells.nbytes for cells, (where, _) in self._kept.items() if where == way)

    def seconds_back(self, cells: int) -> float:
        """Expected seconds until so many cells are back, if they are offloaded now."""
        way: Way = "memory" if cells * self._cell_bytes <= self._policy.memory_bytes else "prefill"
        return self._times.seconds(way, cells) or _SOON_S * cells

    async def offload(
        self, branches: Sequence[BranchState], cells: int, spared: Reloadable | None, may_go: Callable[[], bool]
    ) -> int:
        """Offloads the cells, about so many, that only these branches have; returns the number freed. `spared` are
        cells that are to come back next, and stay where they are; `may_go` is asked last, as making room takes a while.
        Raises BranchBusy, BranchClosed; the branches are then as they were."""
        self._forget_returned()
        if not self._cell_bytes:
            self._cell_bytes = await self._loop.run(CellsCall(lambda _, store: store.cell_bytes))
        has_more = any(branch.offloaded is not None for branch in branches)
        way, store = await self._way_for(cells, spared, has_more)
        offloaded = OffloadedCells(self._loop, branches, store)
        try:
            freed = await offloaded.offload() if may_go() else 0
        except SnapshotError as error:
            self._tell(error)
            way, offloaded = "prefill", OffloadedCells(self._loop, branches, None)
            freed = await offloaded.offload() if may_go() else 0
        if freed:
            self._count += 1
            self._kept[offloaded] = (way, time.monotonic())
            self._watch()
        return freed

    async def reload(self, cells: Reloadable) -> None:
        """Brings cells back, those of others as well. Raises as they do."""
        way = self._kept[cells][0] if isinstance(cells, OffloadedCells) and cells in self._kept else None
        began = time.monotonic()
        await cells.reload()
        if way in ("memory", "disk") and isinstance(cells, OffloadedCells):
            self._times.add(way, cells.rows, time.monotonic() - began)
        self._forget_returned()

    def lose(self, cells: Reloadable) -> bool:
        """Has cells computed again that cannot be read. Returns False for those that were not offloaded here, and those
        that are on their way."""
        if not isinstance(cells, OffloadedCells) or cells not in self._kept or not cells.lose():
            return False
        self._kept[cells] = ("prefill", self._kept[cells][1])
        return True

    async def _way_for(
        self, cells: int, spared: Reloadable | None, has_more: bool
    ) -> tuple[Way, Callable[[], SliceStore] | None]:
        """The fastest way back that there is room for, which is made. `has_more`: what is offloaded of the branches
        already would be lost with these cells."""
        for step in self._loop.last_steps(_STEPS_LOOKED_AT):
            if step.prefill_rows >= _LEAST_ROWS and step.began > self._learned:
                self._times.add("prefill", step.prefill_rows, step.seconds)
                self._learned = step.began
        size = cells * self._cell_bytes
        if (has_more or self._times.pays("memory", cells)) and await self._make_room("memory", size, spared):
            return "memory", InMemory
        if (has_more or self._times.pays("disk", cells)) and await self._make_room("disk", size, spared):
            return "disk", self._file
        return "prefill", None

    async def _make_room(self, way: Way, size: int, spared: Reloadable | None) -> bool:
        """Moves what has waited longest on, or lets it go, until there is room for so many bytes more. Returns False if
        there never is."""
        most = self._policy.memory_bytes if way == "memory" else self._disk_bytes
        while self._bytes_of(way) + size > most:
            kept = [cells for cells, (where, _) in self._kept.items() if where == way and cells.nbytes]
            going = [cells for cells in kept if cells is not spared and not cells.moves]
            if size > most or not going:
                return False
            oldest = min(going, key=lambda cells: self._kept[cells][1])
            pays = way == "memory" and self._times.pays("disk", oldest.rows)
            if pays and await self._make_room("disk", oldest.nbytes, spared):
                await self._move_to_disk(oldest)
            else:
                self.lose(oldest)
        return True

    async def _move_to_disk(self, cells: OffloadedCells) -> None:
        try:
            await cells.move(self._file)
        except OSError as error:
            self._tell(error)
            self.lose(cells)
        else:
            if cells in self._kept:
                self._kept[cells] = ("disk", self._kept[cells][1])

    @property
    def _disk_bytes(self) -> int:
        return 0 if self._policy.folder is None else self._policy.disk_bytes

    def _file(self) -> InFile:
        folder = Path(self._policy.folder or ".")
        folder.mkdir(parents=True, exist_ok=True)
        return InFile(folder)

    def _forget_returned(self) -> None:
        for cells in [cells for cells in self._kept if not cells.belongs]:
            del self._kept[cells]

    def _tell(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            log.warning("cells of branches that wait cannot be written, and are computed again", error=str(error))

    def _watch(self) -> None:
        if self._policy.ttl is None or self._expires:
            return
        self._expires = True
        scope = anyio.CancelScope()

        async def expire() -> None:
            with scope:
                await self._expire(self._policy.ttl or 0.0)
            self._expires = False

        self._background.start(expire, scope.cancel, "agentkv-offload-ttl")

    async def _expire(self, ttl: float) -> None:
        """Lets cells go as their time is over, for as long as any are kept."""
        while kept := [(since, cells) for cells, (way, since) in self._kept.items() if way != "prefill"]:
            left = min(since for since, _ in kept) + ttl - time.monotonic()
            if left > 0:
                await anyio.sleep(left)
                self._forget_returned()
                continue
            due = [cells for since, cells in kept if time.monotonic() >= since + ttl]
            if not all([self.lose(cells) for cells in due]):
                await anyio.sleep(_ON_THEIR_WAY_S)
            self._forget_returned()
