"""One message of the model, read while it is written."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.parsed import CallClosed, Delta, ParsedCall, ParsedMessage, ReasoningDelta, TextDelta

from .._errors import BranchClosed, ContextFull, LimitReached, PositionsExhausted
from .._request import GenerationRequest
from .._sampling import Sampling
from .._stream import DEFAULT_BUFFER, TokenStream

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
        self._unheard = False  # the reader has not got what it was told last

    async def read(self, written: Callable[[ParsedCall], None]) -> None:
        """Generates it to its end; `written` is told of each call once it is complete, or never will be.

        Raises LimitReached or ContextFull for a message that is cut short, BranchClosed where the branch is closed.
        """
        turn, before, read, told = self._turn, len(self._held), 0, 0
        turn.text = ""
        prefix = self._begun()
        parser = self._home.format.parser(prefix=prefix, tools=self._definitions)
        stream = self._stream(prefix)
        most = 1 if turn.desk.heard else None
        try:
            async with stream as tokens:
                while batch := await tokens.batch(most):
                    read += len(batch)
                    deltas = list(parser.feed(self._text(token.id for token in batch)))
                    try:
                        await self._tell(deltas, written)
                    except BaseException:
                        if self._unheard:
                            tokens._unread(read - told)
                            read = told
                            turn.text = turn.text.removesuffix(_text_of(deltas))
                        raise
                    told = read if deltas else told
        except BaseException:
            with suppress(FormatError):
                rest = parser.feed(self._text(self._held._history.log[before + read :]))
                turn.text += _text_of(rest)
            raise
        finally:
            turn.generated += len(self._held) - before
        self.generation = stream.generation
        self._check_whole()
        await self._tell(parser.end(), written)
        self.message = parser.finish()
        turn.text = self.message.content

    def _begun(self) -> str:
        """What the template wrote of the message."""
        written = self._spelled(self._held._history.log[-_PREFIX:]).decode("utf-8", "replace")
        return self._home.format.template.begun_in(written)

    def _stream(self, prefix: str) -> TokenStream[Any]:
        """Its tokens. Where somebody listens each comes at once, and those that were read are kept; else they come with
        those that may complete a call, and all are kept."""
        turn, agent, home = self._turn, self._turn.agent, self._home
        left = agent.max_tokens - turn.generated
        if left <= 0:
            raise LimitReached(
                f"the turn generated {turn.generated} tokens; pass a larger max_tokens to the agent", "max_tokens"
            )
        heard = turn.desk.heard
        buffer = DEFAULT_BUFFER if heard else left
        request = GenerationRequest.checked(
            self._held.id,
            max_tokens=left,
            stop=None,
            sampling=self._sampling,
            speculative=agent.speculative,
            thinking=agent.thinking,
            output=agent.answers.constraint(home.format, self._definitions, prefix) or str,
            top_logprobs=0,
            home=home,
            wait_for_room=self._held._makes_room,
            buffer=buffer,
        )
        urgent = None if heard else home.call_ends if self._definitions else frozenset[int]()
        return TokenStream(self._held, request, buffer, "read" if heard else "made", urgent)

    async def _tell(self, deltas: Iterable[Delta], written: Callable[[ParsedCall], None]) -> None:
        for delta in deltas:
            match delta:
                case TextDelta(text):
                    self._turn.text += text
                    await self._emit(delta)
                case ReasoningDelta():
                    await self._emit(delta)
                case CallClosed(_, call):
                    written(call)

    async def _emit(self, delta: TextDelta | ReasoningDelta) -> None:
        try:
            await self._turn.desk.emit(delta)
        except BaseException:
            self._unheard = self._turn.desk.unheard(delta)
            raise

    def _text(self, tokens: Iterable[int]) -> str:
        return self._decoder.decode(self._spelled(tokens))

    def _spelled(self, tokens: Iterable[int]) -> bytes:
        """The text of tokens as a parser reads it: special ones are part of it."""
        table, size = self._bytes, len(self._bytes)
        return b"".join([table[i] for i in tokens if 0 <= i < size])

    def _check_whole(self) -> None:
        """A message that was cut short is no message: its last call may be half a call."""
        count, reason = len(self.generation.tokens), self.generation.finish_reason
        if reason == "length":
            raise LimitReached(
                f"a message was cut after {count} tokens: the turn may generate {self._turn.agent.max_tokens}; pass a "
                "larger max_tokens to the agent",
                "max_tokens",
            )
        policy = "" if self._held._makes_room else ", or give the branch an `overflow` policy"
        if reason == "context_full" and self._held.context.model_info.max_positions == len(self._held):
            raise PositionsExhausted(
                f"a message was cut after {count} tokens: the model has no more positions; begin with less{policy}"
            )
        if reason == "context_full":
            raise ContextFull(
                f"a message was cut after {count} tokens: the cache is full; close branches, or open the Context with "
                f"a larger capacity{policy}"
            )
        if reason == "cancelled":
            raise BranchClosed("the branch was closed in an agent's turn; close it after the turn")


def _text_of(deltas: Iterable[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
