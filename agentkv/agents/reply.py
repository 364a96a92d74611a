"""One message of the model, read while it is written."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.parsed import CallClosed, Delta, ParsedCall, ParsedMessage, ReasoningDelta, TextDelta

from .._context.generate import GenerationRequest
from .._context.handle import handle_of
from .._context.stream import DEFAULT_BUFFER, TokenStream
from .._model.generate_options import GenerateOptions
from .._types.errors import BranchClosed, ContextFull, PositionsExhausted
from .repetition import Repetition

if TYPE_CHECKING:
    from .._chat.reply import ReplyParser
    from .._context.branch import Branch
    from .._types.results import Generation
    from .steering import CallRules
    from .turn import Turn

Written = Callable[[ParsedCall, bool], None]

_LOOKED_AT = 64  # so often a message is read that nobody listens to, for text that repeats itself


class MessageReply:
    """A message that is generated on a leased branch. `message` and `generation` are set once `read` returns.

    Attributes:
        message: content, reasoning and calls.
        generation: tokens of the message.
    """

    message: ParsedMessage
    generation: Generation

    def __init__(self, turn: Turn[Any], branch: Branch, rules: CallRules, attempt: int) -> None:
        self._turn = turn
        self._attempt = attempt
        self._branch = branch
        self._rules = rules
        self._chat = handle_of(branch).core.chat
        self._repetition = Repetition()
        self._is_unread = False  # the reader has not got what it was told last

    async def read(self, written: Written) -> None:
        """Generates the message to its end.

        Calls `written(call, whole)` for each call that is complete or never will be; `whole` says whether the message
        is complete. Where it is not, `written` may raise EndOfCalls, which ends the message there.

        Raises LimitReached or ContextFull for a message that is cut short, BranchClosed where the branch is closed.
        """
        turn, before, n_read, n_delivered, calls = self._turn, len(self._branch), 0, 0, None
        turn.text = ""
        prefix = self._chat.begun_in(handle_of(self._branch).state.tokens)
        parser = self._parser(prefix)
        stream = self._stream(prefix)
        most = 1 if turn.environment.has_listener else None
        try:
            async with stream as tokens:
                while batch := await tokens.batch(most):
                    n_read += len(batch)
                    deltas = parser.feed_ids(token.id for token in batch)
                    try:
                        await self._tell(deltas, written, whole=False)
                    except BaseException:
                        if self._is_unread:
                            tokens.unread(n_read - n_delivered)
                            n_read = n_delivered
                            turn.text = turn.text.removesuffix(_text_of(deltas))
                        raise
                    n_delivered = n_read if deltas else n_delivered
                    if self._repetition.take(token.id for token in batch):
                        break
        except EndOfCalls as end:
            calls = end.calls
        except BaseException:
            with suppress(FormatError):
                rest = parser.feed_ids(handle_of(self._branch).state.tokens[before + n_read :])
                turn.text += _text_of(rest)
            raise
        finally:
            turn.generated += len(self._branch) - before
        if calls is not None:
            await self._end_behind(calls, stream, prefix, before)
            return
        self.generation = stream.generation
        if self._repetition.period:
            self.generation = replace(self.generation, finish_reason="repetition")
        self._check_whole()
        await self._tell(parser.end(), written, whole=True)
        self.message = parser.finish()
        self._chat.habits.saw(self.message.calls)
        turn.text = self.message.content

    async def _end_behind(self, calls: int, stream: TokenStream[Any], prefix: str, start: int) -> None:
        """Cuts the message after its first `calls` calls, and rolls back the tokens that follow."""
        parser = self._parser(prefix)
        tokens, count = handle_of(self._branch).state.tokens[start:], 0
        while calls and count < len(tokens):
            deltas = parser.feed_ids(tokens[count : count + 1])
            calls -= sum(isinstance(delta, CallClosed) for delta in deltas)
            count += 1
        self.message = parser.finish()
        self._chat.habits.saw(self.message.calls)
        self.generation = replace(stream.first(count), finish_reason="stop")
        self._turn.taken_back += len(tokens) - count
        self._turn.text = self.message.content
        await self._branch.rollback(start + count)

    def _parser(self, prefix: str) -> ReplyParser:
        """Reads it. Where no call may be made, what looks like one is text."""
        called = () if self._rules.choice == "none" else self._turn.definitions
        return self._chat.reply_parser(prefix, called)

    def _stream(self, prefix: str) -> TokenStream[Any]:
        """Token stream of the message.

        With an event listener, tokens arrive one at a time, and those that were read are kept. Without one, they arrive
        in batches that end where a call may be complete, and all are kept.
        """
        turn, agent, chat = self._turn, self._turn.agent, self._chat
        left = min(agent.max_tokens - turn.generated, turn.steering.max_message_tokens)
        if left <= 0:
            raise turn.limit(f"the turn generated {turn.generated} tokens", "max_tokens")
        has_listener = turn.environment.has_listener
        buffer = DEFAULT_BUFFER if has_listener else left
        core = handle_of(self._branch).core
        options = GenerateOptions.checked(
            max_tokens=left, sampling=agent.sampling, speculative=agent.speculative, thinking=agent.thinking
        )
        request = GenerationRequest.checked(
            self._branch.id,
            core,
            options if self._attempt == 1 else options.for_attempt(self._attempt - 1),
            agent.answers.constraint(chat.format, turn.tools, prefix, self._rules) or str,
            wait_for_room=handle_of(self._branch).makes_room,
            buffer=buffer,
        )
        wake_tokens = None if has_listener else _AtTimes(chat.call_end_tokens if turn.tools else frozenset())
        return TokenStream(self._branch, request, buffer, "read" if has_listener else "made", wake_tokens)

    async def _tell(self, deltas: Iterable[Delta], written: Written, *, whole: bool) -> None:
        for delta in deltas:
            match delta:
                case TextDelta(text):
                    self._turn.text += text
                    await self._emit(delta)
                case ReasoningDelta():
                    await self._emit(delta)
                case CallClosed(_, call):
                    written(call, whole)

    async def _emit(self, delta: TextDelta | ReasoningDelta) -> None:
        try:
            await self._turn.environment.emit(delta)
        except BaseException:
            self._is_unread = self._turn.environment.is_unread(delta)
            raise

    def _check_whole(self) -> None:
        """Raises for a message that was cut short, as its last call may be incomplete."""
        count, reason = len(self.generation.tokens), self.generation.finish_reason
        turn = self._turn
        if reason == "repetition":
            raise turn.limit(
                f"a message was cut after {count} tokens: the last {self._repetition.period} come again and again",
                "repetition",
                "ask for less at once, or pass a sampling with a temperature or a repetition_penalty",
            )
        if reason == "length" and count == turn.steering.max_message_tokens:
            raise turn.limit(f"a message was cut after {count} tokens", "max_message_tokens")
        if reason == "length":
            most = turn.agent.max_tokens
            raise turn.limit(f"a message was cut after {count} tokens: the turn may generate {most}", "max_tokens")
        policy = "" if handle_of(self._branch).makes_room else ", or give the branch an `overflow` policy"
        if reason == "context_full" and self._branch.context.model_info.max_positions == len(self._branch):
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


class EndOfCalls(Exception):
    """Ends the message after its first `calls` calls."""

    def __init__(self, calls: int) -> None:
        super().__init__(calls)
        self.calls = calls


class _AtTimes(Container[int]):
    """Container of these tokens, and of every `_LOOKED_AT`-th token that is looked up."""

    def __init__(self, tokens: Container[int]) -> None:
        self._tokens = tokens
        self._n_asked = 0

    def __contains__(self, token: object) -> bool:
        self._n_asked += 1
        return self._n_asked % _LOOKED_AT == 0 or token in self._tokens


def _text_of(deltas: Iterable[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
