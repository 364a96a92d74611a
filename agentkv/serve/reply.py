"""One message of the model on a branch, parsed while it is generated."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentkv_runtime.formats.parsed import (
    ArgumentsDelta,
    CallClosed,
    CallOpened,
    Delta,
    ParsedMessage,
    ReasoningDelta,
    TextDelta,
)

from .._chat.tokenizer import is_ended, text_decoder
from .._context.handle import handle_of
from .._context.thinking import reasoning_tokens
from .._model.generate_options import MOST_TOKENS
from .._types.message import Message, ToolCall
from .._types.results import Generation, Token, TopLogprob
from ..agents.call_decision import call_probability
from .prompts import begun_reply

if TYPE_CHECKING:
    from .._context.branch import Branch, GenerateKwargs
    from .completion import ReplyRequest


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of a message, and its log probability.

    Attributes:
        spelled: its bytes, possibly an incomplete UTF-8 character.
        logprob: natural logarithm of its probability.
        top: the likeliest tokens at its position.
    """

    spelled: bytes
    logprob: float
    top: Sequence[TopLogprob] = ()


@dataclass(frozen=True, slots=True)
class ReplyChunk:
    """Deltas of the message that arrive together, and the tokens of the content among them."""

    deltas: Sequence[Delta]
    likely: Sequence[TokenLogprob] = ()


Tell = Callable[[ReplyChunk], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished message.

    Attributes:
        message: the message as on the branch, with call ids.
        generation: the generation behind it.
        parts: chunks of the message, in order.
        stopped_by: the stop string that ended it; None if it ended otherwise.
        reasoning_tokens: number of its tokens that are reasoning.
    """

    message: Message
    generation: Generation
    parts: Sequence[ReplyChunk]
    stopped_by: str | None
    reasoning_tokens: int

    @property
    def likely(self) -> list[TokenLogprob]:
        """Content tokens with their log probabilities."""
        return [likely for part in self.parts for likely in part.likely]

    @property
    def calls(self) -> bool:
        """Whether the message calls tools and each call is well-formed."""
        return bool(self.message.calls) and all(call.error is None for call in self.message.calls)

    @property
    def cut(self) -> bool:
        """Whether the message ended before the model was done."""
        return self.generation.finish_reason in ("length", "context_full", "cancelled")


async def generate_reply(branch: Branch, reply_request: ReplyRequest, tell: Tell | None = None) -> Reply:
    """Generates a message, and passes each chunk to `tell` as it comes. All of it stays on the branch.

    Calls are reported once they are complete, with JSON arguments in place of the model's own syntax. `check_reply`
    refuses invalid requests before. Raises as `Branch.generate` does.
    """
    reply = _ReplyWriter(branch, await _decided(branch, reply_request))
    return await (reply.whole() if tell is None else reply.streamed(tell))


async def _decided(branch: Branch, reply_request: ReplyRequest) -> ReplyRequest:
    """Rules out tool calls where the probability that a tool fits is below the threshold."""
    if reply_request.call_threshold is None or reply_request.choice != "auto" or not reply_request.tools:
        return reply_request
    probability = await call_probability(branch)
    return (
        replace(reply_request, choice="none")
        if probability is not None and probability < reply_request.call_threshold
        else reply_request
    )


class _ReplyWriter:
    """A message being generated."""

    def __init__(self, branch: Branch, reply_request: ReplyRequest) -> None:
        core = handle_of(branch).core
        form = core.chat.format
        self._branch = branch
        self._reply_request = reply_request
        self._spelled = core.chat.token_bytes
        special = core.chat.tokenizer.special_ids
        # No part of the message: end tokens, and control tokens in stop strings.
        self._ends = frozenset(core.chat.tokenizer.eos_ids).union(i for i in special if self._in_stop(i))
        self._unsayable = self._ends | {-1}  # a stream's last text may come without a token
        self._control = frozenset(special) - self._ends
        self._decoder = text_decoder(core.chat.detokenizer.begun(handle_of(branch).state.tokens))
        self._conversation = handle_of(branch).state.conversation
        self._prefix = begun_reply(core, self._conversation, handle_of(branch).state.tokens)
        self._reasons = form.thought
        self._held = reply_request.output_constraint(form, self._prefix)
        called = () if reply_request.choice == "none" else reply_request.tools  # without tools, a call's syntax is text
        self._parser = core.chat.reply_parser(self._prefix, called)
        self._said = _text_of(TextDelta, self._parser.of_prefix)
        self._thought = _text_of(ReasoningDelta, self._parser.of_prefix)
        self._told: list[ReplyChunk] = []
        self._unsaid: list[TokenLogprob] = []  # tokens whose text the parser still buffers

    async def whole(self) -> Reply:
        generation = await self._branch.generate(**self._options(), output=self._held, output_retries=0)
        tokens = [
            Token(i, "", logprob, index, top)
            for index, (i, logprob, top) in enumerate(
                zip(generation.tokens, generation.logprobs, self._tops(generation), strict=True)
            )
        ]
        texts = list(self._texts(generation, tokens))
        for text, batch in texts if self._reply_request.logprobs else [("".join(text for text, _ in texts), tokens)]:
            self._read(text, batch)
        self._end()
        return self._written(generation)

    def _texts(self, generation: Generation, tokens: Sequence[Token]) -> Iterator[tuple[str, Sequence[Token]]]:
        """Yields the text that each token before the stop string adds, and the decoder's rest at the end."""
        left, _ = self._before_stop(generation)
        for token in tokens:
            piece = b"" if token.id in self._ends else self._bytes_of(token.id)[: max(left, 0)]
            left -= len(piece)
            if piece:
                yield self._marker(token.id) or self._decoder.decode(piece), [token]
        yield self._decoder.decode(b"", final=is_ended(generation.finish_reason)), []

    async def streamed(self, tell: Tell) -> Reply:
        stream = self._branch.stream(**self._options(), output=self._held, keep="made")
        markers = _Markers(self)
        async with stream as tokens:
            while batch := await tokens.batch():
                part = self._read("".join(map(markers.between, batch)), batch)
                if part.deltas:
                    await tell(part)
        part = self._end()
        if part.deltas:
            await tell(part)
        return self._written(stream.generation)

    def _options(self) -> GenerateKwargs:
        room = (self._branch.context.model_info.max_positions or MOST_TOKENS) - len(self._branch)
        return self._reply_request.options(max(room, 1))

    def _read(self, text: str, tokens: Sequence[Token]) -> ReplyChunk:
        self._unsaid += [
            TokenLogprob(self._bytes_of(t.id), t.logprob, t.top_logprobs) for t in tokens if t.id not in self._unsayable
        ]
        return self._part(self._parser.feed(text))

    def _end(self) -> ReplyChunk:
        return self._part(self._parser.end())

    def _part(self, deltas: Iterable[Delta]) -> ReplyChunk:
        """Records a chunk. Pending tokens belong to its content if it has any, else to the markup around content."""
        parts = list(_told(deltas))
        said: list[TokenLogprob] = []
        if any(isinstance(delta, TextDelta) for delta in parts):
            said = self._unsaid
        if parts:
            self._unsaid = []
        self._told.append(ReplyChunk(parts, said))
        return self._told[-1]

    def _written(self, generation: Generation) -> Reply:
        _, stopped_by = self._before_stop(generation)
        parsed = self._parser.finish()
        handle_of(self._branch).core.chat.habits.saw(parsed.calls)
        thought = reasoning_tokens(self._reasons, self._prefix, map(self._bytes_of, generation.tokens))
        return Reply(self._message(parsed), generation, self._told, stopped_by, thought)

    def _message(self, parsed: ParsedMessage) -> Message:
        """The message without the beginning that was in the prompt. Calls get the ids that the branch gives them."""
        calls = tuple(
            ToolCall(call.name, call.arguments, self._conversation.call_id(index), call.error)
            for index, call in enumerate(parsed.calls)
        )
        reasoning = parsed.reasoning.removeprefix(self._thought)
        return Message("assistant", parsed.content.removeprefix(self._said), reasoning or None, calls)

    def _tops(self, generation: Generation) -> Sequence[tuple[TopLogprob, ...]]:
        return generation.top_logprobs or [()] * len(generation.tokens)

    def _in_stop(self, token: int) -> bool:
        """Returns whether a stop string contains the token's bytes."""
        spelled = self._bytes_of(token)
        return bool(spelled) and any(spelled in stop.encode() for stop in self._reply_request.stop)

    def _before_stop(self, generation: Generation) -> tuple[int, str | None]:
        """Returns the message's length in bytes before the stop string that ended it, and that string."""
        pieces = [b"" if i in self._control else self._bytes_of(i) for i in generation.tokens]
        at, stopped_by = _stop_in(pieces, self._reply_request.stop if generation.finish_reason == "stop" else ())
        before = place = 0
        for token, piece in zip(generation.tokens, pieces, strict=True):
            if token in self._control and place <= at:
                before += len(self._bytes_of(token))
            elif token not in self._ends:
                before += min(len(piece), max(at - place, 0))
            place += len(piece)
        return before, stopped_by

    def _marker(self, token: int) -> str:
        """Text of a control token, which a stream's texts omit; empty for other tokens."""
        return self._bytes_of(token).decode("utf-8", "replace") if token in self._control else ""

    def _bytes_of(self, token: int) -> bytes:
        return self._spelled[token] if 0 <= token < len(self._spelled) else b""

    def _text_of(self, tokens: Iterable[int]) -> bytes:
        return b"".join(map(self._bytes_of, tokens))


class _Markers:
    """Inserts control tokens into a stream's texts, which omit them. Text may come later than its tokens where it may
    begin a stop string, so markers wait for their position."""

    def __init__(self, reply: _ReplyWriter) -> None:
        self._reply = reply
        self._waiting: deque[tuple[int, str]] = deque()  # markers with their offsets in characters
        self._said = 0  # characters of all tokens so far
        self._shown = 0  # characters that have arrived as text

    def between(self, token: Token) -> str:
        """Returns the text that comes with a token, with the markers in it."""
        reply, text = self._reply, token.text
        parts: list[str] = []
        if marker := reply._marker(token.id):
            self._waiting.append((self._said, marker))
        elif token.id not in reply._ends:
            self._said += len(reply._decoder.decode(reply._bytes_of(token.id)))
        while self._waiting and self._waiting[0][0] <= self._shown + len(text):
            at, marker = self._waiting.popleft()
            size = max(at - self._shown, 0)
            parts += [text[:size], marker]
            text, self._shown = text[size:], self._shown + size
        self._shown += len(text)
        return "".join([*parts, text])


def _told(deltas: Iterable[Delta]) -> Iterable[Delta]:
    """Yields text and reasoning deltas, and each call once it is complete, with JSON arguments. Truncated calls are
    omitted: they cannot run, and reported deltas cannot be taken back."""
    for delta in deltas:
        match delta:
            case TextDelta() | ReasoningDelta():
                yield delta
            case CallClosed(index, call) if call.error is None:
                yield CallOpened(index, call.name)
                yield ArgumentsDelta(index, json.dumps(call.arguments, ensure_ascii=False))
                yield delta


def _text_of(kind: type[TextDelta | ReasoningDelta], deltas: Iterable[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, kind))


def _stop_in(pieces: Sequence[bytes], stop: Sequence[str]) -> tuple[int, str | None]:
    """Returns the offset of the stop string that the last piece completes, and that string; else the total length and
    None."""
    spelled, last = b"".join(pieces), len(pieces[-1]) if pieces else 0
    found = []
    for text in stop:
        size = len(text.encode())
        if (at := spelled.find(text.encode(), max(len(spelled) - last - size + 1, 0))) >= 0:
            found.append((at + size, at, text))
    _, at, stopped_by = min(found, default=(0, len(spelled), None))
    return at, stopped_by
