"""One message of the model's on a branch, read while it is written."""

from __future__ import annotations

import codecs
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentkv_runtime.formats.call_spelling import JsonCall, NamedJsonCall
from agentkv_runtime.formats.parsed import (
    ArgumentsDelta,
    CallClosed,
    CallOpened,
    Delta,
    ParsedMessage,
    ReasoningDelta,
    TextDelta,
)

from .._generation import Generation, Token, TopLogprob
from .._message import Message, ToolCall, call_id
from .checks import reply_prefix

if TYPE_CHECKING:
    from .._branch import Branch
    from .asked import Asked


@dataclass(frozen=True, slots=True)
class Likely:
    """A token of a message, and how likely it was.

    Attributes:
        spelled: its bytes; half a character is possible.
        logprob: natural logarithm of its probability.
        top: the likeliest tokens in its place.
    """

    spelled: bytes
    logprob: float
    top: Sequence[TopLogprob] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """What came at one time: parts of the message, and the tokens that the content among them is made of."""

    deltas: Sequence[Delta]
    likely: Sequence[Likely] = ()


Tell = Callable[[Part], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Written:
    """A message that was written.

    Attributes:
        message: as the branch has it: calls have their ids.
        generation: its tokens.
        parts: of the message, in their order.
        stopped_by: the stop string that ended it; None where another thing did.
    """

    message: Message
    generation: Generation
    parts: Sequence[Part]
    stopped_by: str | None

    @property
    def likely(self) -> list[Likely]:
        """The tokens of its content."""
        return [likely for part in self.parts for likely in part.likely]

    @property
    def calls(self) -> bool:
        """Does it call tools, each of them well written?"""
        return bool(self.message.calls) and all(call.error is None for call in self.message.calls)

    @property
    def cut(self) -> bool:
        """Did it end before the model was done?"""
        return self.generation.finish_reason in ("length", "context_full", "cancelled")


async def write(branch: Branch, asked: Asked, tell: Tell | None = None) -> Written:
    """Has the model write a message, and tells of each part as it comes. All of it stays on the branch.

    Texts of `ArgumentsDelta` add up to a JSON object, whatever the model's own spelling is.

    What cannot be asked was refused before (`check_reply`). Raises as `Branch.generate` does.
    """
    reply = _Reply(branch, asked)
    return await (reply.whole() if tell is None else reply.streamed(tell))


class _Reply:
    """A message under way."""

    def __init__(self, branch: Branch, asked: Asked) -> None:
        home = branch._home
        form = home.format
        self._branch = branch
        self._asked = asked
        self._spelled = home.token_bytes
        self._ends = frozenset(home.tokenizer.eos_ids)
        self._unsayable = self._ends | {-1}  # a stream's last text may come without a token
        self._control = frozenset(home.tokenizer.special_ids) - self._ends
        prefix = reply_prefix(home, branch._history.log)
        self._held = asked.held(form, prefix)
        self._parser = form.parser(prefix=prefix, tools=asked.tools)
        self._parts = _Parts(isinstance(getattr(form.spelling, "call", None), JsonCall | NamedJsonCall))
        self._told: list[Part] = []
        self._unsaid: list[Likely] = []  # tokens whose text the parser holds back

    async def whole(self) -> Written:
        generation = await self._branch.generate(**self._how(), output=self._held, output_retries=0)
        tokens = [
            Token(i, "", logprob, index, top)
            for index, (i, logprob, top) in enumerate(
                zip(generation.tokens, generation.logprobs, self._tops(generation), strict=True)
            )
        ]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        left, _ = _without_stop(self._text_of(generation.tokens), self._asked.stop, generation)
        for batch in ([token] for token in tokens) if self._asked.logprobs else [tokens]:
            piece = self._text_of(token.id for token in batch if token.id not in self._ends)[: max(left, 0)]
            left -= len(piece)
            if piece:
                self._read(decoder.decode(piece), batch)
        self._end()
        return self._written(generation)

    async def streamed(self, tell: Tell) -> Written:
        stream = self._branch.stream(**self._how(), output=self._held, keep="made")
        async with stream as tokens:
            while batch := await tokens.batch():
                text = "".join(token.text + self._marker(token.id) for token in batch)
                part = self._read(text, batch)
                if part.deltas:
                    await tell(part)
        part = self._end()
        if part.deltas:
            await tell(part)
        return self._written(stream.generation)

    def _how(self) -> dict[str, Any]:
        asked, info = self._asked, self._branch.context.model_info
        room = (info.max_positions or 2**31 - 1) - len(self._branch)
        return {
            "max_tokens": asked.max_tokens or max(room, 1),
            "stop": list(asked.stop) or None,
            "sampling": asked.sampling,
            "top_logprobs": asked.top_logprobs,
        }

    def _read(self, text: str, tokens: Sequence[Token]) -> Part:
        self._unsaid += [
            Likely(self._bytes_of(t.id), t.logprob, t.top_logprobs) for t in tokens if t.id not in self._unsayable
        ]
        return self._part(self._parser.feed(text))

    def _end(self) -> Part:
        return self._part(self._parser.end())

    def _part(self, deltas: Iterable[Delta]) -> Part:
        """Tokens are of the content where content comes of them, else of what is around it."""
        parts = list(self._parts.of(deltas))
        said: list[Likely] = []
        if any(isinstance(delta, TextDelta) for delta in parts):
            said = self._unsaid
        if parts:
            self._unsaid = []
        self._told.append(Part(parts, said))
        return self._told[-1]

    def _written(self, generation: Generation) -> Written:
        _, stopped_by = _without_stop(self._text_of(generation.tokens), self._asked.stop, generation)
        parsed = self._parser.finish()
        return Written(self._message(parsed), generation, self._told, stopped_by)

    def _message(self, parsed: ParsedMessage) -> Message:
        """Its calls have the numbers that the branch counts them by."""
        before = self._branch._history.conversation.calls
        calls = tuple(
            ToolCall(call.name, call.arguments, call_id(number), call.error)
            for number, call in enumerate(parsed.calls, before)
        )
        return Message("assistant", parsed.content, parsed.reasoning or None, calls)

    def _tops(self, generation: Generation) -> Sequence[tuple[TopLogprob, ...]]:
        return generation.top_logprobs or [()] * len(generation.tokens)

    def _marker(self, token: int) -> str:
        """What a control token spells; the texts of a stream leave it out."""
        return self._bytes_of(token).decode("utf-8", "replace") if token in self._control else ""

    def _bytes_of(self, token: int) -> bytes:
        return self._spelled[token] if 0 <= token < len(self._spelled) else b""

    def _text_of(self, tokens: Iterable[int]) -> bytes:
        return b"".join(map(self._bytes_of, tokens))


class _Parts:
    """Deltas whose arguments are JSON: as the model writes them where that is what it writes, else once a call is
    complete."""

    def __init__(self, as_written: bool) -> None:
        self._as_written = as_written
        self._begun: set[int] = set()  # calls whose arguments were told

    def of(self, deltas: Iterable[Delta]) -> Iterable[Delta]:
        for delta in deltas:
            match delta:
                case ArgumentsDelta(index):
                    if self._as_written:
                        self._begun.add(index)
                        yield delta
                case CallClosed(index, call):
                    if index not in self._begun and call.error is None:
                        yield ArgumentsDelta(index, json.dumps(call.arguments, ensure_ascii=False))
                    yield delta
                case TextDelta() | ReasoningDelta() | CallOpened():
                    yield delta


def _without_stop(spelled: bytes, stop: Sequence[str], generation: Generation) -> tuple[int, str | None]:
    """Bytes before the stop string that ended a generation, and that string."""
    if generation.finish_reason != "stop":
        return len(spelled), None
    found = [(at, text) for text in stop if (at := spelled.find(text.encode())) >= 0]
    return min(found, default=(len(spelled), None), key=lambda each: each[0])
