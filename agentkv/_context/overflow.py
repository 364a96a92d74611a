"""Makes room for a branch that no longer fits: when a policy is called, and the methods that it has."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from anyio.lowlevel import checkpoint_if_cancelled

from .._engine.jobs import GenerationJob, Resume
from .._model.options import WINDOW_SPARE
from .._types.checks import ChatMessage, call_it, checked_count, checked_ids, truth_of
from .._types.errors import ContextFull, InvalidInput, PositionsExhausted
from .._types.log import log
from .._types.show import preview
from .._types.tokens import common_prefix
from .lease import acting_lease

if TYPE_CHECKING:
    from .._chat.conversation import Conversation
    from .._engine.interface import StepEngine
    from .._engine.loop import StepLoop
    from .._types.info import ModelInfo
    from .branch import Branch

T = TypeVar("T")
MOST_FUTILE_ROUNDS = 100  # two branches that free cells for each other and take them again would never end


@runtime_checkable
class Overflow(Protocol):
    """Policy for a branch that no longer fits: one of `kv.overflow`, or your own."""

    async def make_room(self, room: Room) -> bool:
        """Makes room with the methods of `room`; returns whether it did.

        False ends the branch's method as without a policy: `finish_reason` "context_full", ContextFull or
        PositionsExhausted. An exception propagates from that method. The policy is called again while there is too
        little room.
        """


@dataclass(frozen=True, slots=True)
class BranchUsage:
    """The engine's figures of a branch at one moment."""

    length: int
    cached: int
    n_to_refill: int
    free: int
    n_exclusive_cells: int
    replaceable: int
    forgotten: tuple[tuple[int, int], ...]

    @property
    def n_resident(self) -> int:
        """Number of tokens that need cells: all but the forgotten ones."""
        return self.length - sum(p1 - p0 for p0, p1 in self.forgotten)


class Room:
    """A branch that does not fit, and the methods that make room for it while it waits. Passed to a policy.

    Attributes:
        branch: the branch, with its `tokens` and `messages`. It may be forked; forks made meanwhile have
            `kv.overflow.Stop()`.
        length: number of tokens now, those of a running generation included.
        cached: number of leading tokens that are in the cache, except for the forgotten ones.
        cells: number of missing cells; 0 if positions are missing.
        positions: number of missing positions; 0 if cells are missing.
        forgotten: ranges (p0, p1) of positions without cells.
        forgets: whether other positions can be forgotten (`ModelInfo.forgets`).
        end: tokens before it may be removed: not the last one, and in an agent's turn none of the turn.
        replaceable: tokens before it may be replaced: as `end`, and no part of a typed output in progress.
    """

    def __init__(self, branch: Branch, usage: BranchUsage, wanted: int) -> None:
        """Private."""
        self.branch = branch
        self._loop = branch._handle.loop
        self._wanted = wanted
        self._over = False  # the policy has answered
        self.forgets = branch.context.model_info.forgets
        self._update(usage)

    def fits(self, kept: int) -> bool:
        """Returns whether there could ever be room with only `kept` tokens of the branch left."""
        info, capacity = self.branch.context.model_info, self.branch.context.stats.capacity
        needed = kept + self._wanted
        return needed <= (info.max_positions or needed) and (info.window is not None or needed <= capacity)

    async def would_fit(self, first: int) -> bool:
        """Returns whether there is room once all removable tokens from `first` on are gone. False if other branches
        share their cells."""
        self._check()
        from_first = checked_count(first, "first", 0)
        await self.branch._handle.reload()
        usage = await _usage_of(self.branch, from_first)
        fed = usage.length - self.end  # what stays behind those that go
        if not self.positions:
            fed = min(fed, max(usage.n_to_refill, 1))
        windowed = self.branch.context.model_info.window is not None  # cells are freed as tokens are fed
        return self.fits(first + 1) and (windowed or fed + self._wanted <= usage.free + usage.n_exclusive_cells)

    async def forget(self, p0: int, p1: int) -> int:
        """Same as `Branch.forget`, but no rollback undoes it. Returns the number of cells freed. Raises
        InvalidInput."""
        self._check()
        last = checked_count(p1, "p1", 0, self.end)
        first = checked_count(p0, "p0", 0, last)

        def forget(engine: StepEngine) -> int:
            return engine.forget(self.branch.id, first, last, True)

        await self.branch._handle.reload()
        freed = await self._loop.call(forget)
        await self.refresh()
        return freed

    async def replace(self, p0: int, p1: int, tokens: Sequence[int] = ()) -> None:
        """Replaces the tokens at [p0, p1) by others, or by none: messages among them leave the conversation, and all
        tokens after them are fed again, at positions after the new ones. Raises InvalidInput, and ContextFull or
        PositionsExhausted if the new tokens do not fit."""
        self._check()
        last = checked_count(p1, "p1", 0, self.replaceable)
        first = checked_count(p0, "p0", 0, last)
        ids = checked_ids(tokens, self.branch.context.model_info.vocab_size)
        if first == last and not len(ids):
            return  # else the rest would be recomputed, and room would seem to have been made
        conversation = self.branch._handle.state.conversation.without_span(first, last, len(ids))
        await self._replace(first, last, ids, conversation)

    async def _replace(self, first: int, last: int, tokens: Sequence[int], conversation: Conversation) -> None:
        branch, state, lease = self.branch, self.branch._handle.state, self.branch._handle.state.lease
        messages = len(state.conversation.entries)
        copies = lease is not None and lease.needs_copy(first)

        def replace(engine: StepEngine) -> int | None:
            before = engine.copy(branch.id) if copies else None
            try:
                if before is not None:
                    engine.drop_cells_from(before, first)
                engine.replace(branch.id, first, last, tokens)
            except Exception:
                if before is not None:
                    engine.close(before)
                raise
            return before

        def on_result(before: int | None) -> None:  # also if the replacing task is cancelled meanwhile
            state.set_conversation(conversation)
            if lease is not None and state.lease is lease:
                lease.note_room_made(len(tokens) - (last - first), messages - len(conversation.entries), before)
            elif before is not None:
                self._loop.close(before)

        await branch._handle.reload()
        await self._loop.call(replace, on_result=on_result)
        await self.refresh()

    async def rewrite(self, messages: Sequence[ChatMessage]) -> bool:
        """Replaces all messages before the open assistant's turn by these; the turn stays token for token, and tokens
        that differ are fed again. Returns False if no turn is open. Raises InvalidInput."""
        self._check()
        state = self.branch._handle.state
        old = state.conversation
        if not old.awaits_reply:
            return False
        update = await self.branch._handle.core.chat.encoder.prompt(messages, tools=old.tools, template=old.template)
        assert update.conversation is not None
        if not update.conversation.awaits_reply:
            return False
        end, added = old.end, update.added
        if end == self.length:  # the turn has no tokens yet: the last token, which opens it, stays
            if added[-1] != state.tokens[end - 1]:
                return False
            end, added = end - 1, added[:-1]
        kept = min(common_prefix(state.tokens[:end], array("i", added)), end - 1)
        await self._replace(kept, end, added[kept:], update.conversation)
        return True

    async def uncache(self, length: int) -> None:
        """Frees the cells after the first `length` tokens; these are fed again when the branch continues. For use
        before tokens ahead of them are replaced. Raises InvalidInput."""
        self._check()
        kept = checked_count(length, "length", 0, self.length)
        await self.branch._handle.reload()
        await self._loop.call(lambda engine: engine.drop_cells_from(self.branch.id, kept))
        await self.refresh()

    def _check(self) -> None:
        if self._over:
            raise InvalidInput("this room is of a policy that has answered; make room before `make_room` returns")

    async def refresh(self) -> None:
        await self.branch._handle.reload()  # what is offloaded is in none of the figures
        self._update(await _usage_of(self.branch))

    def _update(self, usage: BranchUsage) -> None:
        lease = self.branch._handle.state.lease
        self.length = usage.length
        self.cached = usage.cached
        self.forgotten = usage.forgotten
        self.cells, self.positions = self._missing(usage)
        self.end = max(usage.length - 1, 0) if lease is None else min(lease.start, max(usage.length - 1, 0))
        self.replaceable = min(self.end, usage.replaceable)

    def _missing(self, usage: BranchUsage) -> tuple[int, int]:
        """Numbers of missing cells and positions, one of which is 0."""
        limit = self.branch.context.model_info.max_positions
        positions = 0 if limit is None else max(usage.length + self._wanted - limit, 0)
        if positions:
            return 0, positions
        return _missing_cells(self._wanted, usage.n_to_refill, usage.free), 0


def _missing_cells(wanted: int, n_to_refill: int, free: int) -> int:
    return max(wanted + max(n_to_refill, 1) - free, 0)  # the last token may be fed again


def _lacking_cells(engine: StepEngine, branch: int, wanted: int) -> int:
    return _missing_cells(wanted, engine.n_to_refill(branch), free_cells(engine))


def free_cells(engine: StepEngine) -> int:
    """Number of cells of no branch, on the engine's thread; retained ones count."""
    stats = engine.stats()
    return stats.capacity - stats.cells_used


def most_cells(info: ModelInfo) -> int | None:
    """Cells that a branch takes at most, however long it is, as a window frees others on the way; None without one."""
    return None if info.window is None else info.window + info.sinks + WINDOW_SPARE


async def _usage_of(branch: Branch, first: int = 0) -> BranchUsage:
    """The branch's figures; `owned` counts the cells it alone has from position `first` on."""
    holds_cells = branch.context.model_info.holds_cells

    def look(engine: StepEngine) -> BranchUsage:
        stats, cached = engine.stats(), engine.n_cached(branch.id)
        used = stats.cells_used if holds_cells else cached  # a server drops what other branches have there
        return BranchUsage(
            length=engine.length(branch.id),
            cached=cached,
            n_to_refill=engine.n_to_refill(branch.id),
            free=stats.capacity - used,
            n_exclusive_cells=engine.n_exclusive_cells(branch.id, first),
            replaceable=engine.replaceable(branch.id),
            forgotten=tuple(engine.forgotten(branch.id)),
        )

    return await branch._handle.call(look)


def checked_overflow(policy: object) -> Overflow:
    """Returns a valid policy. Raises InvalidInput."""
    if isinstance(policy, type) or not isinstance(policy, Overflow):
        raise InvalidInput(
            f"overflow is {preview(policy)}, but it must be a policy of kv.overflow, or an object with `make_room`"
            f"{call_it(policy)}"
        )
    return policy


class OverflowHandler:
    """Calls the policy of a branch whenever one method finds no room for `tokens` more."""

    def __init__(self, branch: Branch, tokens: int) -> None:
        self._branch = branch
        self._tokens = tokens
        self._tried = (-1, 0)  # tokens, and how often with these nothing was lacking, and the method was tried again
        self._last_usage = (-1, -1)  # tokens, and those that need cells, when room was made last
        self._futile_rounds = 0  # number of times that others took the room made since

    async def make(self) -> bool:
        """Makes room by the policy; returns whether to try again, with the branch's cells in the cache. False if
        nothing came of it, whatever the policy returned."""
        if not await self._make():
            return False
        try:
            await self._branch._handle.reload()  # others may have taken its own meanwhile
        except ContextFull:
            return False
        return True

    async def _make(self) -> bool:
        branch, state = self._branch, self._branch._handle.state
        # A policy's own calls on the branch call no policy.
        if branch._handle.waits_for == "nothing" or state.making_room:
            return False
        usage = await _usage_of(branch)
        itself = branch._handle.record.branch
        room = Room((itself and itself()) or branch, usage, self._tokens)
        if not (room.cells or room.positions):
            length, tries = self._tried
            self._tried = usage.length, tries + 1 if usage.length == length else 1  # others may take the cells
            return self._tried[1] < MOST_FUTILE_ROUNDS
        if room.cells and await self._find_cells(room):
            return True
        if not branch._handle.makes_room:
            return False
        state.making_room = True
        acting = acting_lease.set(state.lease)
        try:
            await room.refresh()
            answer = branch.overflow.make_room(room)
            if not isawaitable(answer):
                raise InvalidInput(
                    f"make_room of {preview(branch.overflow)} is no coroutine; define it with `async def`"
                )
            made = truth_of(await answer, f"make_room of {preview(branch.overflow)}")
        finally:
            state.making_room, room._over = False, True
            with suppress(ValueError):  # a coroutine that is torn down may end in another context
                acting_lease.reset(acting)
        log.debug("room was asked for", branch=branch.id, made=made, cells=room.cells, positions=room.positions)
        return made and not branch.closed and await self._better(usage, room)

    async def _find_cells(self, room: Room) -> bool:
        """Has branches that wait give up their cells, unless even all cells would not do."""
        core, state = self._branch._handle.core, self._branch._handle.state
        offloader, most = core.offloader, most_cells(core.model.info)
        if offloader is None or not room.fits(room.length):
            return False

        def lacking(engine: StepEngine) -> int:
            lacks = _lacking_cells(engine, state.id, self._tokens)
            return lacks if most is None else min(lacks, most - engine.cells_of([state.id]) - free_cells(engine))

        return await offloader.find(self._branch._handle, lacking)

    async def _better(self, before: BranchUsage, room: Room) -> bool:
        """Returns whether the branch needs fewer cells or lacks less. Other branches may have taken the room made."""
        after = await _usage_of(self._branch)
        usage = (before.length, before.n_resident)
        self._futile_rounds = self._futile_rounds + 1 if usage == self._last_usage else 0
        self._last_usage = usage
        lacks_less = sum(room._missing(after)) < sum(room._missing(before))
        return after.n_resident < before.n_resident or (lacks_less and self._futile_rounds < MOST_FUTILE_ROUNDS)


async def retry_with_room(branch: Branch, tokens: int, attempt: Callable[[], Awaitable[T]]) -> T:
    """Runs `attempt`, and again each time that the branch's policy made room for `tokens` more."""
    room = OverflowHandler(branch, tokens)
    while True:
        try:
            return await attempt()
        except (ContextFull, PositionsExhausted):
            if not await room.make():
                raise


async def run_generation(branch: Branch, job: GenerationJob[T]) -> T:
    """Runs a generation to its end; calls the branch's policy when it waits for room."""
    with branch._handle.state.running():
        return await run_waiting(branch._handle.loop, job, OverflowHandler(branch, 1).make)


async def run_waiting(loop: StepLoop, job: GenerationJob[T], make_room: Callable[[], Awaitable[bool]]) -> T:
    """Runs a generation to its end; calls `make_room` when it waits for room, and resumes it with the result."""
    await checkpoint_if_cancelled()
    loop.submit(job)
    try:
        while await job.wait_full_or_done():
            loop.submit(Resume(job, await make_room()))
    except BaseException as error:
        await loop.cancel(job, error)
        raise
    return job.take()
