"""The policies of `kv.overflow`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._errors import ContextFull, InvalidInput, LimitReached, OutputInvalid, PositionsExhausted, TooManyBranches
from ._inputs import checked_count
from ._log import log
from ._shown import shown

if TYPE_CHECKING:
    from ._overflow import Room
    from .agents.agent import Agent

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
        first = _end_of_message(room, self.keep)
        if not await room.would_fit(first):
            return False
        oldest = _held_from(room, first)
        while room.cells and room.forgets and oldest < room.cached:
            last = min(_end_of_messages(room, oldest, oldest + self._some(room, oldest)), room.cached)
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
        last = _end_of_messages(room, first, max(gone, first + max(self._some(room, first), lacking)))
        last = min(last, room.replaceable)
        if last - first < lacking:
            return False
        await room.replace(first, last)
        return True


@dataclass(frozen=True, slots=True)
class Summarize:
    """Has an agent condense the oldest half of what may go, on a fork; the summary takes its place.

    Where the branch has messages, the summary stands before the next question, which is a message of the user's. The
    agent needs cells and positions of its own; where it fails for want of them, or of `max_tokens`, the oldest tokens
    go without one, and a warning is logged.

    Attributes:
        agent: says the summary; its output is text.
        prompt: what it is asked.
        keep: so many tokens stay at the front, and the rest of the message that the last of them is in.
    """

    agent: Agent[Any, str]
    prompt: str = (
        "Summarise the conversation up to here in a few sentences, with every fact that may be needed later. Answer "
        "with the summary alone."
    )
    keep: int = 4

    def __post_init__(self) -> None:
        from .agents.agent import Agent

        checked_count(self.keep, "keep", 0, MOST)
        if not isinstance(self.agent, Agent) or self.agent.output is not str:
            raise InvalidInput(f"agent is {shown(self.agent)}, but it must be a kv.Agent whose output is text")

    async def make_room(self, room: Room) -> bool:
        """Condenses it. What follows is fed again in any case, so its cells make room for the agent."""
        first = _end_of_message(room, self.keep)
        last = min(_end_of_messages(room, first, first + max((room.end - first) // 2, 1)), room.replaceable)
        if last <= first or not await room.would_fit(first):
            return False
        messages = room.branch.messages
        await room.uncache(last)
        try:
            async with await room.branch.fork() as fork:
                await fork.rollback(last)
                run = await self.agent.run(fork, self.prompt)
        except (ContextFull, LimitReached, OutputInvalid, PositionsExhausted, TooManyBranches) as error:
            log.warning("no summary was made; the oldest tokens go", branch=room.branch.id, error=str(error))
            await room.replace(first, last)  # what follows them is to be fed again already
            return True
        question = next((m for m in messages if m.start == last and m.role == "user"), None)
        if question is None:
            tokens = room.branch.context.tokenizer.encode(run.text, parse_special=False)
            shorter = len(tokens) < last - first
            if shorter:
                await room.replace(first, last, tokens)
            return shorter
        told = {"role": "user", "content": f"(What was said before: {run.text.strip()})\n\n{question.content}"}
        kept = [m for m in messages if m.end <= first]
        later = [m for m in messages if m.start > last and m.end <= room.branch._history.conversation.end]
        length = room.length
        return await room.rewrite([*kept, told, *later]) and room.length < length


def _held_from(room: Room, position: int) -> int:
    """The first position from there on that was not forgotten."""
    for first, last in sorted(room.forgotten):
        if first <= position:
            position = max(position, last)
    return position


def _end_of_message(room: Room, position: int) -> int:
    """The end of the message that the token before a position is in; the position itself outside of messages."""
    ends = (message.end for message in room.branch.messages if message.start < position <= message.end)
    return min(next(ends, position), room.end)


def _end_of_messages(room: Room, first: int, position: int) -> int:
    """Up to where tokens from `first` on go, for those before a position to be gone: to where the next question begins,
    or the next message, or within a message that is all there is."""
    messages = [message for message in room.branch.messages if max(first + 1, position) <= message.start <= room.end]
    questions = [message.start for message in messages if message.role == "user"]
    starts = questions or [message.start for message in messages]
    return starts[0] if starts else min(position, room.end)
