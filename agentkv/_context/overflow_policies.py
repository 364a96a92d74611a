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
    """Removes nothing: a generation ends with "context_full", other methods raise ContextFull or PositionsExhausted."""

    async def make_room(self, room: Room) -> bool:
        """Returns False."""
        return False


@dataclass(frozen=True, slots=True)
class DropOldest:
    """Drops the oldest tokens, after the first few: whole messages if the branch has messages.

    If cells are missing, the tokens are forgotten (`Branch.forget`): positions stay, and nothing is fed again. If
    positions are missing, layers have recurrent states (`ModelInfo.forgets`), or forks share the cells, the tokens are
    removed from the branch, and those after them are fed again, like a prompt. Nothing is dropped if that would not
    make room.

    Attributes:
        keep: number of tokens to keep at the front, and the rest of the message that the last of them is in. The first
            few absorb surplus attention (attention sinks: StreamingLLM, Xiao et al. 2023); a system message is here,
            too.
        batch: minimum number of tokens to drop at a time; None for half of the droppable ones. The more are dropped at
            a time, the less is fed again in total.
    """

    keep: int = 4
    batch: int | None = None

    def __post_init__(self) -> None:
        checked_count(self.keep, "keep", 0, MOST)
        if self.batch is not None:
            checked_count(self.batch, "batch", 1, MOST)

    async def make_room(self, room: Room) -> bool:
        """Forgets the oldest tokens, or removes them and feeds the rest again."""
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
        gone = _held_from(room, first)  # forgotten tokens must not return to the cache
        last = end_of_messages(room, first, max(gone, first + max(self._some(room, first), lacking)))
        last = min(last, room.replaceable)
        if last - first < lacking:
            return False
        await room.replace(first, last)
        return True


def _held_from(room: Room, position: int) -> int:
    """The first position, from `position` on, that is not forgotten."""
    for first, last in sorted(room.forgotten):
        if first <= position:
            position = max(position, last)
    return position


def end_of_message(room: Room, position: int) -> int:
    """The end of the message that the token before `position` is in; `position` itself outside of messages."""
    ends = (message.end for message in room.branch.messages if message.start < position <= message.end)
    return min(next(ends, position), room.end)


def end_of_messages(room: Room, first: int, position: int) -> int:
    """End of the tokens to drop from `first` on, at least up to `position`: the start of the next question, or else of
    the next message; within the last message, `position` itself."""
    messages = [message for message in room.branch.messages if max(first + 1, position) <= message.start <= room.end]
    questions = [message.start for message in messages if message.role == "user"]
    starts = questions or [message.start for message in messages]
    return starts[0] if starts else min(position, room.end)
