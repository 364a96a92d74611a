"""One message of the model, read while it is written."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.parsed import CallClosed, Delta, ParsedCall, ParsedMessage, ReasoningDelta, TextDelta

from .._context.files import rewind
from .._context.generate import GenerationRequest
from .._context.handle import handle_of
from .._context.stream import DEFAULT_BUFFER, TokenStream
from .._model.generate_options import MOST_TOKENS, GenerateOptions
from .._types.checks import checked_count
from .._types.errors import BranchClosed, ContextFull, PositionsExhausted
from .._types.results import Generation, Usage, joined
from .events import RolledBack
from .repetition import Repetition
from .sentences import text_of, tokens_of_sentences

if TYPE_CHECKING:
    from array import array

    from .._chat.reply import ReplyParser
    from .._context.branch import Branch
    from .forking import TurnCopy
    from .steering import CallRules
    from .turn import Turn

Written = Callable[[ParsedCall, bool], None]

_LOOKED_AT = 64  # so often a message is read that nobody listens to, for text that repeats itself


class MessageReply:
    """A message that is generated on a leased branch. `message` and `generation` are set once `read` returns.

    Attributes:
        message: content, reasoning and calls.
        generation: tokens of the message.
        was_cut: whether words that enter at once ended it.
    """

    message: ParsedMessage
    generation: Generation

    def __init__(self, turn: Turn[Any], branch: Branch, rules: CallRules, attempt: int, start: int) -> None:
        """`start`: tokens of the branch before the message, of which it may have some already."""
        self._turn = turn
        self._branch = branch
        self._rules = rules
        self._chat = handle_of(branch).core.chat
        self._start = start
        self._before = handle_of(branch).state.tokens[:start]
        self._prefix = self._chat.begun_in(self._before)
        self._given = handle_of(branch).state.tokens[start:]
        self._options = self._checked_options(attempt)
        self._repetition = Repetition()
        self._parts: list[TokenStream[Any]] = []
        self._n_read = 0  # tokens that the parser has
        self._n_delivered = 0  # those of them whose deltas the reader has
        self._is_unread = False  # the reader has not got what it was told last
        self.was_cut = False

    async def read(self, written: Written, n_begun: Callable[[], int], point: Callable[[], TurnCopy]) -> None:
        """Generates the message to its end, or until words are to enter at once.

        Calls `written(call, whole)` for each call that is complete or never will be; `whole` says whether the message
        is complete. Where it is not, `written` may raise EndOfCalls, which ends the message there. `n_begun` returns
        how many calls a message keeps that words cut short: through the last one that has begun. `point` copies the
        turn where the message is paused.

        Raises LimitReached or ContextFull for a message that is cut short, BranchClosed where the branch is closed.
        """
        turn, calls = self._turn, None
        turn.text = ""
        parser = self._parser()
        try:
            self._take_over(parser, written)
            await self._generate(parser, written, point)
        except EndOfCalls as end:
            calls = end.calls
        except BaseException:
            with suppress(FormatError):
                rest = parser.feed_ids(handle_of(self._branch).state.tokens[self._start + self._n_read :])
                turn.text += text_of(rest)
            raise
        finally:
            turn.generated += len(self._branch) - self._start
        if calls is None and self.was_cut:
            calls = n_begun()
        if calls is not None:
            await self._end_early(calls)
            return
        self.generation = self._generated()
        if self._repetition.period:
            self.generation = replace(self.generation, finish_reason="repetition")
        self._check_whole()
        await self._tell(parser.end(), written, whole=True)
        self.message = parser.finish()
        self._chat.habits.saw(self.message.calls)
        turn.text = self.message.content

    def _take_over(self, parser: ReplyParser, written: Written) -> None:
        """Reads what the branch has of the message."""
        self._n_read = len(self._given)
        self._repetition.take(self._given)
        for delta in parser.feed_ids(self._given):
            if isinstance(delta, TextDelta):
                self._turn.text += delta.text
            elif isinstance(delta, CallClosed):
                written(delta.call, False)

    async def _generate(self, parser: ReplyParser, written: Written, point: Callable[[], TurnCopy]) -> None:
        """Generates the message, in as many parts as pauses make of it."""
        control = self._turn.control
        while True:
            await control.gate(point)
            if control.interrupts:
                self.was_cut = True
                return
            stream = self._stream(len(self._branch) - self._start)
            self._parts.append(stream)
            if await self._read_part(stream, parser, written):
                self.was_cut = True
                return
            if self._repetition.period or not stream.was_ended or self._branch.closed:
                return

    async def _read_part(self, stream: TokenStream[Any], parser: ReplyParser, written: Written) -> bool:
        """Returns whether words are to enter behind what the listener has heard."""
        turn = self._turn
        most = 1 if turn.environment.has_listener else None
        self._n_delivered = self._n_read  # what an earlier part has of the message stays
        async with stream as tokens:
            with turn.control.generating(tokens.end):
                while batch := await tokens.batch(most):
                    self._n_read += len(batch)
                    deltas = parser.feed_ids(token.id for token in batch)
                    try:
                        await self._tell(deltas, written, whole=False)
                    except BaseException:
                        if self._is_unread:
                            tokens.unread(self._n_read - self._n_delivered)
                            self._n_read = self._n_delivered
                            turn.text = turn.text.removesuffix(text_of(deltas))
                        raise
                    self._n_delivered = self._n_read if deltas else self._n_delivered
                    if self._repetition.take(token.id for token in batch):
                        return False
                    if turn.environment.has_listener and turn.control.interrupts:
                        return True
        return False

    async def cut(self, calls: int) -> None:
        """Rolls back the end of a message that failed: what says nothing behind its last text and its first `calls`
        calls, such as half a call."""
        all_tokens = handle_of(self._branch).state.tokens
        before, tokens = all_tokens[: self._start], all_tokens[self._start :]
        count = max(self._end_of_calls(tokens, calls), self._end_of_text(tokens))
        if before == self._before and count < len(tokens):  # else room was made meanwhile
            self._turn.taken_back += len(tokens) - count
            await rewind(handle_of(self._branch), self._start + count)

    async def _end_early(self, calls: int) -> None:
        """Cuts the message after its first `calls` calls, or if there are none after its last whole sentence, and rolls
        back the tokens that follow."""
        tokens = handle_of(self._branch).state.tokens[self._start :]
        count = self._end_of_calls(tokens, calls) if calls else self._end_of_sentences(tokens)
        parser = self._parser()
        parser.feed_ids(tokens[:count])
        self.message = parser.finish()
        self._chat.habits.saw(self.message.calls)
        self._turn.taken_back += len(tokens) - count
        self._turn.text = self.message.content
        if tokens:
            self.generation = replace(self._generated(count), finish_reason="stop")
            await rewind(handle_of(self._branch), self._start + count)
        if self.was_cut and count < len(tokens):
            await self._turn.environment.tell(RolledBack(self._start + count, "words enter at once"))

    def _generated(self, count: int | None = None) -> Generation:
        """The generation of all parts, or of their first `count` tokens."""
        parts: list[Generation] = []
        if self._given:
            given = self._given.tolist()[:count]
            parts.append(Generation("", given, [], "cancelled", Usage(self._start, len(given))))
        for part in self._parts:
            left = None if count is None else count - sum(len(generation.tokens) for generation in parts)
            parts.append(part.generation if left is None else part.first(left))
        return joined(parts)

    def _end_of_calls(self, tokens: array[int], calls: int) -> int:
        """Number of tokens through the last of the first `calls` calls."""
        parser, count = self._parser(), 0
        while calls and count < len(tokens):
            deltas = parser.feed_ids(tokens[count : count + 1])
            calls -= sum(isinstance(delta, CallClosed) for delta in deltas)
            count += 1
        return count

    def _end_of_text(self, tokens: array[int]) -> int:
        """Number of tokens through the last piece of text or reasoning that a listener was told of."""
        parser, end = self._parser(), 0
        for count, token in enumerate(tokens, 1):
            if any(isinstance(delta, TextDelta | ReasoningDelta) for delta in parser.feed_ids([token])):
                end = count - parser.n_held(tokens[:count])
        return end

    def _end_of_sentences(self, tokens: array[int]) -> int:
        """Number of tokens through the last whole sentence of the text; 0 where none is whole, or no text is asked."""
        return tokens_of_sentences(tokens, self._parser) if self._turn.agent.answers.is_text else 0

    def _parser(self) -> ReplyParser:
        """Reads it. Where no call may be made, what looks like one is text."""
        called = () if self._rules.choice == "none" else self._turn.definitions
        return self._chat.reply_parser(self._prefix, called)

    def _checked_options(self, attempt: int) -> GenerateOptions:
        agent = self._turn.agent
        options = GenerateOptions.checked(
            sampling=agent.sampling, speculative=agent.speculative, thinking=agent.thinking
        )
        return options if attempt == 1 else options.for_attempt(attempt - 1)

    def _stream(self, n_made: int) -> TokenStream[Any]:
        """Token stream of the message, behind the `n_made` tokens that it has.

        With an event listener, tokens arrive one at a time, and those that were read are kept. Without one, they arrive
        in batches that end where a call may be complete, and all are kept.
        """
        turn, agent, chat = self._turn, self._turn.agent, self._chat
        left = min(agent.max_tokens - turn.generated, turn.steering.max_message_tokens) - n_made
        if left <= 0:
            raise turn.limit(f"the turn generated {turn.generated} tokens", "max_tokens")
        has_listener = turn.environment.has_listener
        buffer = DEFAULT_BUFFER if has_listener else left
        request = GenerationRequest.checked(
            self._branch.id,
            handle_of(self._branch).core,
            replace(self._options, max_tokens=checked_count(left, "max_tokens", 1, MOST_TOKENS)),
            agent.answers.constraint(chat.format, turn.tools, self._prefix, self._rules) or str,
            waits_for=handle_of(self._branch).waits_for,
            buffer=buffer,
            n_generated=n_made,
            continues=bool(self._parts or self._given),
        )
        ends = chat.call_end_tokens if turn.tools else frozenset()
        wake_tokens = None if has_listener else _AtTimes(ends, turn.environment.is_heard)
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
            self._is_unread = self._turn.environment.take_back(delta)
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
                f"a larger capacity or with `offload=kv.Offload(idle=0)`, by which idle branches wait elsewhere{policy}"
            )
        if reason == "cancelled":
            raise BranchClosed("the branch was closed in an agent's turn; close it after the turn")


class EndOfCalls(Exception):
    """Ends the message after its first `calls` calls."""

    def __init__(self, calls: int) -> None:
        super().__init__(calls)
        self.calls = calls


class _AtTimes(Container[int]):
    """Container of these tokens, and of every `_LOOKED_AT`-th token that is looked up; of all while `is_heard`."""

    def __init__(self, tokens: Container[int], is_heard: Callable[[], bool]) -> None:
        self._tokens = tokens
        self._is_heard = is_heard
        self._n_asked = 0

    def __contains__(self, token: object) -> bool:
        self._n_asked += 1
        return self._n_asked % _LOOKED_AT == 0 or token in self._tokens or self._is_heard()
