"""Cells for branches that lack some: branches on which nothing runs give up theirs, and what has to wait, waits."""

from __future__ import annotations

import itertools
import math
import time
import weakref
from bisect import insort
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar, cast

import anyio

from .._aio.lock import Lock
from .._engine.interface import CellEngine
from .._storage.offload_stores import OffloadStores
from .._types.errors import AgentKVError, ContextFull, SnapshotError
from .._types.log import log
from .overflow import free_cells
from .underway import Underway

if TYPE_CHECKING:
    from .._aio.background import BackgroundTasks
    from .._engine.interface import StepEngine
    from .._engine.loop import StepLoop
    from .._state.branch_state import Lease, Reloadable
    from .._types.offload import Offload
    from .core import BranchRegistry
    from .handle import BranchHandle, BranchRecord

T = TypeVar("T")

MOMENT_S = 0.05
"""A branch between two methods of one turn is not taken for one that waits, as long as others can be waited for."""

PATIENCE = 200
"""Looks, a moment apart, at branches that run nothing and keep their cells: they are being made, say, or saved. Not
seconds: on a busy machine this process may not run for some."""

RECENT = 4
"""Looks until a branch in no turn is taken for one that stays as it is: its task may be about to close it."""

ATTEMPTS = 200
"""At a branch that others take the cells from each time that there are enough."""

Lacking: TypeAlias = "Callable[[StepEngine], int]"
"""Number of cells that lack at this moment, on the engine's thread."""


@dataclass(slots=True, eq=False)
class Claim:
    """A branch's claim for cells.

    Attributes:
        place: in the order in which claims are served: by priority, then first come first served.
        lacking: number of cells that lack; None where any will do.
        handle: the branch; None for one that is to be made.
        waits: whether it may wait for cells that others are using.
        freed: whether others gave up cells for it.
        moved: set when it is first, and something has changed.
        stuck: number of looks for which nothing has run.
        looked: time of the last of them.
    """

    place: tuple[float, int]
    lacking: Lacking | None
    handle: BranchHandle | None
    waits: bool
    freed: bool = False
    moved: anyio.Event = field(default_factory=anyio.Event)
    stuck: int = 0
    looked: float = 0.0

    @property
    def record(self) -> BranchRecord | None:
        """The branch."""
        return None if self.handle is None else self.handle.record


class Resting(NamedTuple):
    """A branch on which nothing runs, as the engine has it.

    Attributes:
        cells: number of cells that no other branch has.
        sharers: branches that have its last cell, where it has none for itself.
    """

    id: int
    cells: int
    sharers: frozenset[int]


class Look(NamedTuple):
    """The cache at one moment, as a claim has it.

    Attributes:
        lacks: number of cells that lack; 0 or less for none.
        resting: branches that may give up cells.
        running: whether jobs run.
        paused: whether a generation waits for its reader.
        pinned: whether cells are of no branch: copies are on their way, of branches that are closed, too.
        live: all branches.
    """

    lacks: int
    resting: list[Resting]
    running: bool
    paused: bool
    pinned: bool
    live: set[int]


class Survey(NamedTuple):
    """The branches at one moment, as the event loop knows them.

    Attributes:
        known: ids of all.
        givers: those that may give up cells, by id; those whose cells are partly offloaded included.
        claiming: those with claims of their own.
        about_to: whether some were in use a moment ago or are, or are on their way.
    """

    known: set[int]
    givers: dict[int, BranchRecord]
    claiming: set[BranchRecord | None]
    about_to: bool


class Offloader:
    """Finds cells in one Context, by the rules of `kv.Offload`.

    One claim is served at a time, the first one. Where nothing can be given up now, it waits as long as jobs run, since
    each of them ends, or lacks cells itself and can be taken from; so claims never wait for each other.
    """

    def __init__(self, loop: StepLoop, registry: BranchRegistry, background: BackgroundTasks, policy: Offload) -> None:
        self._loop = loop
        self._registry = registry
        self._policy = policy
        self._stores = OffloadStores(loop, policy, background)
        self.underway = Underway()  # prompts whose cells nobody takes who comes back
        self._tickets = itertools.count()
        self._turns: weakref.WeakKeyDictionary[Lease, int] = weakref.WeakKeyDictionary()  # tickets, one for all claims
        self._claims: list[Claim] = []  # those that wait, in their order
        self._looks: deque[float] = deque([-math.inf] * RECENT, RECENT)  # times of the last ones that found nothing
        self._serving = Lock()

    @property
    def stores(self) -> OffloadStores:
        """Where the cells are."""
        return self._stores

    async def find(
        self, handle: BranchHandle | None, lacking: Lacking | None, waits: bool = False, ticket: int | None = None
    ) -> bool:
        """Has others give up cells until none lack, and brings the branch's own back; waits for those in use where the
        branch may. Returns whether there is room then.

        Args:
            handle: the branch; None for one that is to be made.
            lacking: number of cells that lack; None where that is not known.
            waits: whether it waits for cells in use, as a turn does, though the branch is in none yet.
            ticket: its place among those that wait; None for the last.
        """
        claim = self._claim(handle, lacking, waits, next(self._tickets) if ticket is None else ticket)
        if not claim.waits:
            return bool(await self._serve(claim))
        insort(self._claims, claim, key=lambda each: each.place)
        try:
            while True:
                claim.moved = anyio.Event()
                if self._claims[0] is claim:
                    served = await self._serve(claim)
                    if served is not None:
                        return served
                with anyio.move_on_after(MOMENT_S if self._claims[0] is claim else None):
                    await claim.moved.wait()
        finally:
            self._claims.remove(claim)
            self.notify()

    async def reload(self, handle: BranchHandle) -> None:
        """Brings the offloaded cells of a branch back. Raises ContextFull where there is no room for them, and as
        `OffloadedCells.reload`."""
        state = handle.state
        if not (self._claims or self.underway.lengths):
            try:
                return await self._bring_back(handle)
            except ContextFull:
                pass
        if not await self.find(handle, lambda _: 0) and state.offloaded is not None:
            await self._bring_back(handle)  # says what it lacks

    async def retry(
        self, attempt: Callable[[], Awaitable[T]], lacking: Lacking | None = None, waits: bool = False
    ) -> T:
        """Runs what makes a branch, and again each time that others gave up cells for it. See `find`."""
        ticket = next(self._tickets)  # one for all attempts: else those that came later would go on first
        if self._claims and (waits or self._policy.idle is not None):
            await self.find(None, lacking or (lambda _: 0), waits, ticket)  # behind those that have waited longer
        for _ in range(ATTEMPTS):  # others may take the cells each time
            try:
                return await attempt()
            except ContextFull as error:
                if error.hopeless:
                    raise
                if not await self.find(None, lacking, waits, ticket):
                    break
        return await attempt()

    def _claim(self, handle: BranchHandle | None, lacking: Lacking | None, waits: bool, ticket: int) -> Claim:
        waits = waits or self._policy.idle is not None
        if handle is None:
            return Claim((0.0, ticket), lacking, None, waits)
        state = handle.state
        waits = waits or state.lease is not None or self._stores.has(state.offloaded)
        if state.lease is not None:  # who has begun goes on before those who have not
            ticket = self._turns.setdefault(state.lease, ticket)
        return Claim((-handle.record.priority, ticket), lacking, handle, waits)

    async def _serve(self, claim: Claim) -> bool | None:
        """Returns whether there is room; None where there may be some later."""
        async with self._serving:
            least = 0  # lacks, whatever the claim says
            while True:
                survey = self._survey(claim)  # before the look: what moves may be back behind it
                look = await self._loop.call(partial(_look, claim, survey.givers, self.underway))
                lacks = max(look.lacks, least)
                freed = await self._free(claim, survey, look, lacks) if lacks > 0 else 0
                claim.freed = freed > 0
                if lacks > 0 and not freed:
                    return self._may_come_free(claim, look, survey.about_to or bool(look.live - survey.known))
                if lacks <= freed:
                    try:
                        await self._settle(claim)
                    except ContextFull:  # what runs took the cells meanwhile, or more come back than was counted
                        least = 1
                    else:
                        return True

    def _may_come_free(self, claim: Claim, look: Look, about_to: bool) -> Literal[False] | None:
        """Returns None where cells may come free without the claim's doing, else False. `about_to`: some branches are
        in use or were a moment ago, are being made, or were on their way."""
        if not claim.waits:
            return False
        if self._claims[0] is not claim:  # one that goes before it came meanwhile, and its branch gave up nothing
            return None
        records = self._registry.records
        if look.running or any(map(_is_moving, records)):
            claim.stuck = 0
            return None
        if not (about_to or look.paused or look.pinned or any(each.cells for each in look.resting)):
            return False
        if time.monotonic() - claim.looked >= MOMENT_S:
            claim.looked, claim.stuck = time.monotonic(), claim.stuck + 1
            self._looks.append(claim.looked)
        return None if claim.stuck <= PATIENCE else False

    async def _settle(self, claim: Claim) -> None:
        if claim.handle is not None:
            await self._bring_back(claim.handle)
            claim.handle.state.touch()

    async def _free(self, claim: Claim, survey: Survey, look: Look, lacks: int) -> int:
        """Has one branch give up its cells, or branches that share some; returns how many came free."""
        spared = None if claim.record is None else claim.record.state.offloaded
        givers, own = survey.givers, [each for each in look.resting if each.cells]
        for each in sorted(own, key=lambda each: self._order(givers[each.id], each.cells, survey.claiming)):
            if freed := await self._offload([givers[each.id]], each.cells, spared):
                return freed
        resting = {each.id for each in look.resting}
        for sharers in {each.sharers for each in look.resting if each.sharers and each.sharers <= resting}:
            if freed := await self._offload([givers[id] for id in sorted(sharers)], lacks, spared):
                return freed
        return 0

    def _survey(self, claim: Claim) -> Survey:
        now, records = time.monotonic(), list(self._registry.records)
        claiming = {other.record for other in self._claims}
        behind = {other.record for other in self._claims if other.place > claim.place}
        ahead = claiming - behind | {claim.record}
        givers, about_to = {}, False
        for record in records:
            about_to = about_to or _is_moving(record) or record.state.is_in_use or self._is_recent(record, claim)
            if record in ahead or self._stays(record) or not (record in behind or self._waits(record)):
                continue
            if claim.waits and record not in claiming and now - record.state.used_at < MOMENT_S:
                about_to = True  # it is between two methods
            else:
                givers[record.state.id] = record
        return Survey({record.state.id for record in records}, givers, claiming, about_to)

    def _is_recent(self, record: BranchRecord, claim: Claim) -> bool:
        """Returns whether others used it since the last looks. By their order, as a busy machine is late by seconds."""
        return record is not claim.record and record.state.used_at >= self._looks[0]

    @staticmethod
    def _stays(record: BranchRecord) -> bool:
        return record.closed or record.priority == math.inf or record.state.is_in_use or _is_moving(record)

    def _waits(self, record: BranchRecord) -> bool:
        if record.parked or record.state.lease is not None:
            return True
        return self._policy.idle is not None and time.monotonic() - record.state.used_at >= self._policy.idle

    def _order(
        self, record: BranchRecord, cells: int, claiming: Collection[BranchRecord | None]
    ) -> tuple[float, bool, float]:
        """Smallest first: low priority, no claim of its own, and much waiting for each second that a cell costs."""
        waited = time.monotonic() - record.state.used_at
        return record.priority, record in claiming, -waited * cells / self._stores.seconds_back(cells)

    async def _offload(self, records: list[BranchRecord], cells: int, spared: Reloadable | None) -> int:
        states = [record.state for record in records]

        def may_go() -> bool:
            return not any(map(self._stays, records))

        if not may_go():  # since the look at it
            return 0
        try:
            return await self._stores.offload(states, cells, spared, may_go)
        except AgentKVError as error:  # one of them goes on just now
            log.debug("a branch gives up no cells", branches=[state.id for state in states], error=str(error))
            return 0

    async def _bring_back(self, handle: BranchHandle) -> None:
        state = handle.state
        while state.offloaded is not None:
            cells = state.offloaded.first_back
            try:
                await self._stores.reload(cells)
            except SnapshotError as error:
                if not self._stores.lose(cells):
                    raise
                log.warning("cells are computed again, as they cannot be read", branch=state.id, error=str(error))
            handle.check_open()

    def notify(self) -> None:
        """Called when branches have changed. Wakes the first claim alone: of hundreds that wait, no other can be
        served."""
        if self._claims:
            self._claims[0].moved.set()


def _look(claim: Claim, givers: Iterable[int], underway: Underway, engine: StepEngine) -> Look:
    """Looks at the cells, on the engine's thread."""
    cells, live = cast(CellEngine, engine), set(engine.live())
    resting = []
    for id in live.intersection(givers):
        if cells.rests(id):
            own = engine.n_exclusive_cells(id, 0)
            resting.append(Resting(id, own, frozenset(() if own else cells.sharers(id))))
    running = cells.n_running() > 0
    paused = not running and not all(map(cells.rests, live))
    pinned = engine.stats().cells_used > engine.cells_of(list(live))
    return Look(_lacking(claim, underway, engine), resting, running, paused, pinned, live)


def _lacking(claim: Claim, underway: Underway, engine: StepEngine) -> int:
    """Cells that the claim lacks, those of its branch that are offloaded included, beside prompts that are underway."""
    if claim.lacking is None:
        return 0 if claim.freed else 1
    away = 0 if claim.handle is None else engine.n_offloaded(claim.handle.id)
    owed = underway.cells(engine) if away else 0
    return max(claim.lacking(engine), away + owed - free_cells(engine))


def _is_moving(record: BranchRecord) -> bool:
    offloaded = record.state.offloaded
    return offloaded is not None and offloaded.moves
