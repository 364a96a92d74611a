"""Overflow policy that replaces the oldest messages by an agent's summary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._context.handle import handle_of
from .._context.overflow_policies import MOST, end_of_message, end_of_messages
from .._types.checks import checked_count
from .._types.errors import ContextFull, InvalidInput, LimitReached, OutputInvalid, PositionsExhausted, TooManyBranches
from .._types.log import log
from .._types.show import preview

if TYPE_CHECKING:
    from .._context.overflow import Room
    from .agent import Agent


@dataclass(frozen=True, slots=True)
class Summarize:
    """Has an agent summarise the oldest half of the removable tokens, on a fork, and puts the summary in their place.

    Where the branch has messages, the summary stands before the next question, which is a message of the user's. The
    agent needs cells and positions of its own; where it fails for lack of them, or of `max_tokens`, the oldest tokens
    are removed without a summary, and a warning is logged.

    Attributes:
        agent: writes the summary; its output is text.
        prompt: the request for the summary.
        keep: number of tokens that stay at the front, with the rest of the message that the last of them is in.
    """

    agent: Agent[Any, str]
    prompt: str = (
        "Summarise the conversation up to here in a few sentences, with every fact that may be needed later. Answer "
        "with the summary alone."
    )
    keep: int = 4

    def __post_init__(self) -> None:
        from .agent import Agent

        checked_count(self.keep, "keep", 0, MOST)
        if not isinstance(self.agent, Agent) or self.agent.output is not str:
            raise InvalidInput(f"agent is {preview(self.agent)}, but it must be a kv.Agent whose output is text")

    async def make_room(self, room: Room) -> bool:
        """Replaces the oldest half by a summary. Frees later cells first: they are prefilled again anyway."""
        first = end_of_message(room, self.keep)
        last = min(end_of_messages(room, first, first + max((room.end - first) // 2, 1)), room.replaceable)
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
        later = [m for m in messages if m.start > last and m.end <= handle_of(room.branch).state.conversation.end]
        length = room.length
        return await room.rewrite([*kept, told, *later]) and room.length < length
