"""Making room for a branch that does not fit any more: when a policy is asked, and what it may do."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from anyio.lowlevel import checkpoint_if_cancelled

from .._engine.jobs import GenerationJob, GoOn
from .._types.checks import ChatMessage, checked_count, checked_ids, truth_of
from .._types.errors import ContextFull, InvalidInput, PositionsExhausted
from .._types.log import log
from .._types.show import shown
from .._types.tokens import common_prefix
from .lease import acting_hold

if TYPE_CHECKING:
    from .._chat.conversation import Conversation
    from .._engine.interface import StepEngine
    from .._engine.loop import StepLoop
    from .branch import Branch

T = TypeVar("T")
MOST_IN_VAIN = 100  # two that give each other cells, and take them again, would never end


@runtime_checkable
class Overflow(Protocol):
    """What a branch does when it does not fit any more: one of `kv.overflow`, or your own."""

    async def make_room(self, room: Room) -> bool:
        """Makes room by the verbs of `room`, and says whether it did.

        False ends the verb as without a policy: `finish_reason` "context_full", ContextFull or PositionsExhausted. What
        it raises comes out of the verb. It is asked again as long as there is too little.
        """


@dataclass(frozen=True, slots=True)
class _State:
    """What the engine says of a branch at one moment."""

    length: int
    cached: int
    lacking: int
    free: int
    owned: int
    replaceable: int
    forgotten: tuple[tuple[int, int], ...]

    @property
    def held(self) -> int:
        """How many tokens it needs cells for."""
        return self.length - sum(p1 - p0 for p0, p1 in self.forgotten)


class Room:
    """A branch that does not fit, and the verbs that make room for it while it waits. Made for a policy.

    Attributes:
        branch: the branch: `branch.tokens` and `branch.messages` tell what it holds, and it may be forked; forks that
            are made meanwhile have `kv.overflow.Stop()`.
        length: how many tokens it has now, those of a running generation included.
        cached: of these, so many from the first on are in the cache, but for the forgotten ones.
        cells: how many cells are lacking; 0 where it is positions.
        positions: how many positions are lacking; 0 where it is cells.
        forgotten: ranges (p0, p1) of positions that have no cells any more.
        forgets: can others be forgotten (`ModelInfo.forgets`)?
        end: tokens before it may go: not the last one, and in an agent's turn none of the turn.
        replaceable: tokens before it may give way to others: as `end`, and no typed output that is under way.
    """

    def __init__(self, branch: Branch, state: _State, wanted: int) -> None:
        """Private."""
        self.branch = branch
        self._loop = branch._handle.loop
        self._wanted = wanted
        self._over = False  # the policy has answered
        self.forgets = branch.context.model_info.forgets
        self._take(state)

    def fits(self, kept: int) -> bool:
        """Could there ever be room, if so many tokens of the branch stayed?"""
        info, capacity = self.branch.context.model_info, self.branch.context.stats.capacity
        needed = kept + self._wanted
        return needed <= (info.max_positions or needed) and (info.window is not None or needed <= capacity)

    async def would_fit(self, first: int) -> bool:
        """Is there room once all tokens from `first` on are gone that may go? Not where others hold their cells."""
        self._check()
        state = await _state_of(self.branch, checked_count(first, "first", 0))
        fed = state.length - self.end  # what stays behind those that go
        if not self.positions:
            fed = min(fed, max(state.lacking, 1))
        windowed = self.branch.context.model_info.window is not None  # cells are let go as others are fed
        return self.fits(first + 1) and (windowed or fed + self._wanted <= state.free + state.owned)

    async def forget(self, p0: int, p1: int) -> int:
        """As `Branch.forget`, but no rollback takes it back. Returns how many cells are free. Raises InvalidInput."""
        self._check()
        last = checked_count(p1, "p1", 0, self.end)
        first = checked_count(p0, "p0", 0, last)

        def forget(engine: StepEngine) -> int:
            return engine.forget(self.branch.id, first, last, True)

        freed = await self._loop.call(forget)
        await self._refresh()
        return freed

    async def replace(self, p0: int, p1: int, tokens: Sequence[int] = ()) -> None:
        """The tokens at [p0, p1) give way to others, or to none: messages that are among them leave the conversation,
        and what follows is fed again, at positions that follow the new ones. Raises InvalidInput, and ContextFull or
        PositionsExhausted where more come than have room.
        """
        self._check()
        last = checked_count(p1, "p1", 0, self.replaceable)
        first = checked_count(p0, "p0", 0, last)
        ids = checked_ids(tokens, self.branch.context.model_info.vocab_size)
        if first == last and not len(ids):
            return  # else it would be computed anew, and look as if room had been made
        conversation = self.branch._handle.state.conversation.without(first, last, len(ids))
        await self._replace(first, last, ids, conversation)

    async def _replace(self, first: int, last: int, tokens: Sequence[int], conversation: Conversation) -> None:
        branch, history, hold = self.branch, self.branch._handle.state, self.branch._handle.state.hold
        messages = len(history.conversation.entries)
        keeps = hold is not None and hold.needs(first)

        def replace(engine: StepEngine) -> int | None:
            before = engine.copy(branch.id) if keeps else None
            try:
                if before is not None:
                    engine.drop_cells_from(before, first)
                engine.replace(branch.id, first, last, tokens)
            except Exception:
                if before is not None:
                    engine.close(before)
                raise
            return before

        def told(before: int | None) -> None:  # also where whoever replaced them is cancelled meanwhile
            history.converse(conversation)
            if hold is not None and history.hold is hold:
                hold.moved(len(tokens) - (last - first), messages - len(conversation.entries), before)
            elif before is not None:
                self._loop.close(before)

        await self._loop.call(replace, told=told)
        await self._refresh()

    async def rewrite(self, messages: Sequence[ChatMessage]) -> bool:
        """The conversation becomes these messages, all before the assistant's turn that is open, which stays token for
        token; what differs is fed again. False where no turn is open. Raises InvalidInput.
        """
        self._check()
        history = self.branch._handle.state
        old = history.conversation
        if not old.opened:
            return False
        made = await self.branch._handle.core.chat.encoding.prompt(messages, tools=old.tools, template=old.template)
        assert made.conversation is not None
        if not made.conversation.opened:
            return False
        end, added = old.end, made.added
        if end == self.length:  # nothing of the turn is there yet: the last token, which opens it, stays
            if added[-1] != history.log[end - 1]:
                return False
            end, added = end - 1, added[:-1]
        kept = min(common_prefix(history.log[:end], array("i", added)), end - 1)
        await self._replace(kept, end, added[kept:], made.conversation)
        return True

    async def uncache(self, length: int) -> None:
        """Frees the cells behind the first `length` tokens, which are fed again when the branch goes on: where tokens
        before them are to give way anyway. Raises InvalidInput.
        """
        self._check()
        kept = checked_count(length, "length", 0, self.length)
        await self._loop.call(lambda engine: engine.drop_cells_from(self.branch.id, kept))
        await self._refresh()

    def _check(self) -> None:
        if self._over:
            raise InvalidInput("this room is of a policy that has answered; make room before `make_room` returns")

    async def _refresh(self) -> None:
        self._take(await _state_of(self.branch))

    def _take(self, state: _State) -> None:
        hold = self.branch._handle.state.hold
        self.length = state.length
        self.cached = state.cached
        self.forgotten = state.forgotten
        self.cells, self.positions = self._lacks(state)
        self.end = max(state.length - 1, 0) if hold is None else min(hold.start, max(state.length - 1, 0))
        self.replaceable = min(self.end, state.replaceable)

    def _lacks(self, state: _State) -> tuple[int, int]:
        """Cells and positions, of which one is 0."""
        limit = self.branch.context.model_info.max_positions
        positions = 0 if limit is None else max(state.length + self._wanted - limit, 0)
        if positions:
            return 0, positions
        lacking = max(state.lacking, 1)  # tokens that are fed before; the last one may be fed again
        return max(self._wanted + lacking - state.free, 0), 0


async def _state_of(branch: Branch, first: int = 0) -> _State:
    """With what it alone owns from a position on."""
    holds_cells = branch.context.model_info.holds_cells

    def look(engine: StepEngine) -> _State:
        stats, cached = engine.stats(), engine.n_cached(branch.id)
        used = stats.cells_used if holds_cells else cached  # a server drops what other branches have there
        return _State(
            length=engine.length(branch.id),
            cached=cached,
            lacking=engine.n_to_refill(branch.id),
            free=stats.capacity - used,
            owned=engine.n_exclusive_cells(branch.id, first),
            replaceable=engine.replaceable(branch.id),
            forgotten=tuple(engine.forgotten(branch.id)),
        )

    return await branch._handle.call(look)


def checked_overflow(policy: object) -> Overflow:
    """Raises InvalidInput for what makes no room."""
    if isinstance(policy, type) or not isinstance(policy, Overflow):
        raise InvalidInput(
            f"overflow is {shown(policy)}, but it must be a policy of kv.overflow, or an object with `make_room`"
        )
    return policy


class RoomMaker:
    """Asks the policy of a branch whenever one verb of it finds no room for so many tokens more."""

    def __init__(self, branch: Branch, tokens: int) -> None:
        self._branch = branch
        self._tokens = tokens
        self._fits: _State | None = None  # as it was when nothing was lacking, and the verb was tried again
        self._held = (-1, -1)  # tokens, and those that need cells, when room was made last
        self._in_vain = 0  # times that it was made since, and others took it

    async def make(self) -> bool:
        """Is it worth another try? Not where nothing has come of it, whatever a policy says."""
        branch, history = self._branch, self._branch._handle.state
        if not branch._handle.makes_room or history.asking:  # what a policy does on the branch itself asks nobody
            return False
        state = await _state_of(branch)
        itself = branch._handle.record.branch
        room = Room((itself and itself()) or branch, state, self._tokens)
        if not (room.cells or room.positions):
            tried, self._fits = self._fits == state, state
            return not tried
        history.asking = True
        acting = acting_hold.set(history.hold)
        try:
            answer = branch.overflow.make_room(room)
            if not isawaitable(answer):
                raise InvalidInput(f"make_room of {shown(branch.overflow)} is no coroutine; define it with `async def`")
            made = truth_of(await answer, f"make_room of {shown(branch.overflow)}")
        finally:
            history.asking, room._over = False, True
            with suppress(ValueError):  # a coroutine that is torn down may end in another context
                acting_hold.reset(acting)
        log.debug("room was asked for", branch=branch.id, made=made, cells=room.cells, positions=room.positions)
        return made and not branch.closed and await self._better(state, room)

    async def _better(self, before: _State, room: Room) -> bool:
        """Does the branch hold less, or lack less? Others may have taken what it gave."""
        after = await _state_of(self._branch)
        held = (before.length, before.held)
        self._in_vain = self._in_vain + 1 if held == self._held else 0
        self._held = held
        lacks_less = sum(room._lacks(after)) < sum(room._lacks(before))
        return after.held < before.held or (lacks_less and self._in_vain < MOST_IN_VAIN)


async def with_room(branch: Branch, tokens: int, attempt: Callable[[], Awaitable[T]]) -> T:
    """Runs a verb, and again each time that the branch's policy made room for so many tokens."""
    room = RoomMaker(branch, tokens)
    while True:
        try:
            return await attempt()
        except (ContextFull, PositionsExhausted):
            if not await room.make():
                raise


async def run_generation(branch: Branch, job: GenerationJob[T]) -> T:
    """Runs a generation to its end; where it waits for room, the branch's policy is asked."""
    return await run_waiting(branch._handle.loop, job, RoomMaker(branch, 1).make)


async def run_waiting(loop: StepLoop, job: GenerationJob[T], make_room: Callable[[], Awaitable[bool]]) -> T:
    """Runs a generation to its end; where it waits for room, `make_room` says whether there is some then."""
    await checkpoint_if_cancelled()
    loop.submit(job)
    try:
        while await job.paused():
            loop.submit(GoOn(job, await make_room()))
    except GeneratorExit:  # the coroutine is torn down: nothing can be awaited any more
        loop.drop(job)
        raise
    except BaseException:
        await loop.cancel(job)
        raise
    return job.result()
