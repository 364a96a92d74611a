"""One message of the model, read while it is written."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from agentkv_runtime.formats.parsed import CallClosed, Delta, ParsedCall, ParsedMessage, ReasoningDelta, TextDelta

from .._errors import BranchClosed, ContextFull, LimitReached
from .._sampling import Sampling
from . import events

if TYPE_CHECKING:
    from .._branch import Branch
    from .._generation import Generation
    from .turn import Turn

_PREFIX = 64  # tokens before the message, in which a template may have begun it, with `<think>` say


class Reply:
    """A message that is generated on a held branch. `message` and `generation` are there once it was read.

    Attributes:
        message: its content, reasoning and calls.
        generation: its tokens.
    """

    message: ParsedMessage
    generation: Generation

    def __init__(self, turn: Turn[Any], held: Branch, attempt: int) -> None:
        self._turn = turn
        self._sampling = turn.agent.sampling or Sampling()
        if attempt > 1:  # the same draws would say the same
            drawn = {"seed": (self._sampling.seed or 0) + attempt - 1}
            warmer = {"temperature": 1.0} if self._sampling.temperature == 0 else {}
            self._sampling = self._sampling.model_copy(update=drawn | warmer)
        self._held = held
        self._home = held._home
        self._definitions = [tool.definition for tool in turn.desk.tools.values()]
        self._bytes = self._home.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    async def read(self, written: Callable[[ParsedCall], None]) -> None:
        """Generates it to its end; `written` is told of each call once it is complete, or never will be.

        Raises LimitReached or ContextFull for a message that is cut short, BranchClosed where the branch is closed.
        """
        turn, agent, form = self._turn, self._turn.agent, self._home.format
        left = agent.max_tokens - turn.generated
        if left <= 0:
            raise LimitReached(f"the turn generated {turn.generated} tokens; pass a larger max_tokens to the agent")
        prefix = self._home.tokenizer.decode(self._held.tokens[-_PREFIX:], skip_special=False)
        parser = form.parser(prefix=prefix, tools=self._definitions)
        stream = self._held.stream(
            max_tokens=left,
            sampling=self._sampling,
            speculative=agent.speculative,
            output=agent.answers.constraint(form, self._definitions, prefix) or str,
        )
        async with stream as tokens:
            async for token in tokens:
                turn.generated += token.id >= 0
                await self._tell(parser.feed(self._spelled(token.id)), written)
        self.generation = stream.generation
        self._check_whole()
        await self._tell(parser.end(), written)
        self.message = parser.finish()
        turn.text = self.message.content

    async def _tell(self, deltas: Iterable[Delta], written: Callable[[ParsedCall], None]) -> None:
        emit = self._turn.desk.emit
        for delta in deltas:
            match delta:
                case TextDelta(text):
                    await emit(events.TextDelta(text))
                case ReasoningDelta(text):
                    await emit(events.ReasoningDelta(text))
                case CallClosed(_, call):
                    written(call)

    def _spelled(self, token: int) -> str:
        """What a token adds to the text, as a parser reads it: special tokens are part of it."""
        table = self._bytes
        return self._decoder.decode(table[token]) if 0 <= token < len(table) else ""

    def _check_whole(self) -> None:
        """A message that was cut short is no message: its last call may be half a call."""
        count, reason = len(self.generation.tokens), self.generation.finish_reason
        if reason == "length":
            raise LimitReached(
                f"a message was cut after {count} tokens: the turn may generate {self._turn.agent.max_tokens}; pass a "
                "larger max_tokens to the agent"
            )
        if reason == "context_full":
            raise ContextFull(
                f"a message was cut after {count} tokens: the cache or the model's positions are full; close branches, "
                "or open the Context with a larger capacity"
            )
        if reason == "cancelled":
            raise BranchClosed("the branch was closed in an agent's turn; close it after the turn")
