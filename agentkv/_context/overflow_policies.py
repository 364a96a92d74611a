"""Policies of `kv.overflow` that need no agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._types.checks import checked_count

if TYPE_CHECKING:
    from .overflow import Room

MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing goes: a generation ends with "context_full", other verbs raise ContextFull or PositionsExhausted."""

    async def make_room(self, room: Room) -> bool:
        """Makes none."""
        return False


@dataclass(frozen=True, slots=True)
class DropOldest:
    """Lets the oldest tokens go, after the first few: whole messages where the branch has messages.

    Where cells are lacking they are forgotten (`Branch.forget`): positions go on, and nothing is fed again. Where
    positions are, the model's layers keep states (`ModelInfo.forgets`), or forks share the cells, the tokens leave the
    branch, and what stays is fed again behind the first few, as a prompt would be. Nothing goes where that would not
    make room.

    Attributes:
        keep: so many tokens stay at the front, and the rest of the message that the last of them is in. The first few
            take up attention that has nowhere to go (StreamingLLM, Xiao et al. 2023); a system message is here as well.
        batch: so many go at a time, at least; None for half of those that may. What is fed again costs the less, the
            more go at a time.
    """

    keep: int = 4
    batch: int | None = None

    def __post_init__(self) -> None:
        checked_count(self.keep, "keep", 0, MOST)
        if self.batch is not None:
            checked_count(self.batch, "batch", 1, MOST)

    async def make_room(self, room: Room) -> bool:
        """Forgets the oldest, or begins again without them."""
        first = end_of_message(room, self.keep)
        if not await room.would_fit(first):
            return False
        oldest = _held_from(room, first)
        while room.cells and room.forgets and oldest < room.cached:
            last = min(end_of_messages(room, oldest, oldest + self._some(room, oldest)), room.cached)
            if last <= oldest:
                break
            await room.forget(oldest, last)
            oldest = last
        lacking = room.positions or room.cells
        return not lacking or await self._begin_again(room, first, lacking)

    def _some(self, room: Room, oldest: int) -> int:
        return self.batch or max((room.end - oldest) // 2, 1)

    async def _begin_again(self, room: Room, first: int, lacking: int) -> bool:
        gone = _held_from(room, first)  # what was forgotten must not come back into the cache
        last = end_of_messages(room, first, max(gone, first + max(self._some(room, first), lacking)))
        last = min(last, room.replaceable)
        if last - first < lacking:
            return False
        await room.replace(first, last)
        return True


def _held_from(room: Room, position: int) -> int:
    """The first position from there on that was not forgotten."""
    for first, last in sorted(room.forgotten):
        if first <= position:
            position = max(position, last)
    return position


def end_of_message(room: Room, position: int) -> int:
    """The end of the message that the token before a position is in; the position itself outside of messages."""
    ends = (message.end for message in room.branch.messages if message.start < position <= message.end)
    return min(next(ends, position), room.end)


def end_of_messages(room: Room, first: int, position: int) -> int:
    """Up to where tokens from `first` on go, for those before a position to be gone: to where the next question begins,
    or the next message, or within a message that is all there is."""
    messages = [message for message in room.branch.messages if max(first + 1, position) <= message.start <= room.end]
    questions = [message.start for message in messages if message.role == "user"]
    starts = questions or [message.start for message in messages]
    return starts[0] if starts else min(position, room.end)
