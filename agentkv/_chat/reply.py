"""Parses generated tokens into a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.parsed import Delta, ParsedMessage, ReasoningDelta, TextDelta

from .._types.message import Message, ToolCall, as_mapping, call_id
from .tokenizer import Detokenizer, text_decoder

if TYPE_CHECKING:
    from agentkv_runtime.formats import Format
    from agentkv_runtime.text.tokenizer import Tokenizer

Tools = Sequence[Mapping[str, Any]] | None


class ReplyReader:
    """Parses generated tokens into messages, by the model's call format."""

    def __init__(self, tokenizer: Tokenizer, find_format: Callable[[], Format]) -> None:
        self._tokenizer = tokenizer
        self.find_format = find_format  # takes a few renderings, the first time
        self._ends = frozenset(tokenizer.eos_ids)
        self._spelling = Detokenizer(tokenizer)

    def text(self, log: Sequence[int], start: int) -> tuple[str, int]:
        """Text of the tokens from `start` on, control tokens included, and its end: before any end tokens."""
        end = len(log)
        while end > start and log[end - 1] in self._ends:
            end -= 1
        if end == len(log):
            return self._spelling.whole(log[start:]), end
        size = self._tokenizer.vocab_size
        return self._tokenizer.decode([i for i in log[start:end] if i < size], skip_special=False), end

    def message(self, text: str, prompt: str, tools: Tools, name_call: Callable[[int], str] = call_id) -> Message:
        """Parses a generated text into a message.

        Args:
            text: the generated text.
            prompt: the template's text before it; it may contain the beginning of the reply.
            tools: tool definitions.
            name_call: gives the id of each call, by its index from 0.
        """
        try:
            form = self.find_format()
            parser = form.parser(prefix=form.template.begun_in(prompt), tools=tools or ())
            parser.feed(text)
            parsed = parser.finish()
        except FormatError:  # a pattern of the folder's that takes too long
            return Message("assistant", text)
        calls = tuple(
            ToolCall(call.name, call.arguments, name_call(index), call.error) for index, call in enumerate(parsed.calls)
        )
        written = "".join(delta.text for delta in parser.deltas_of_prefix if isinstance(delta, TextDelta))
        return Message("assistant", parsed.content.removeprefix(written), parsed.reasoning or None, calls)

    def mapping(self, message: Message, text: str) -> dict[str, Any]:
        """The message as templates take it. With calls that cannot be parsed it is the raw text; reasoning goes into
        the content if the template knows none."""
        if any(call.error is not None for call in message.calls):
            return {"role": "assistant", "content": text}
        if message.reasoning is not None and self._tokenizer.reasoning_name is None:
            written = self.find_format().write(message.content, (), message.reasoning)
            message = replace(message, content=written, reasoning=None)
        return as_mapping(message)

    def agree(self, one: str, other: str, prompt: str, tools: Tools) -> bool:
        """Returns whether the second text says the first message, or that and more. Whitespace around its parts is
        ignored."""
        if one.strip() in other:
            return True
        return _essence(self.message(one, prompt, tools)) == _essence(self.message(other, prompt, tools))


def _essence(message: Message) -> tuple[object, ...]:
    return message.content.strip(), (message.reasoning or "").strip(), message.calls


class ReplyParser:
    """One message of the model's, read while it is generated.

    Attributes:
        of_prefix: deltas of what the prompt has of the message.
    """

    def __init__(
        self, form: Format, token_bytes: Sequence[bytes], prefix: str, tools: Sequence[Mapping[str, Any]]
    ) -> None:
        self._parser = form.parser(prefix=prefix, tools=tools)
        self._token_bytes = token_bytes
        self._decoder = text_decoder()
        self.of_prefix = self._parser.deltas_of_prefix

    def feed(self, text: str) -> list[Delta]:
        """Deltas of the next text, control tokens spelled out; pieces of text that follow each other are one, so that a
        listener gets what a token says whole or not at all."""
        return merged(self._parser.feed(text))

    def feed_ids(self, ids: Iterable[int]) -> list[Delta]:
        """Deltas of the next tokens, control tokens included; a character that they only begin waits for its end."""
        return self.feed(self._decoder.decode(spelled_out(self._token_bytes, ids)))

    def n_held(self, ids: Sequence[int]) -> int:
        """Number of the last of all ids fed of which no delta has any text: they may be a call, or half a character."""
        left = len(self._parser.held.encode()) + len(self._decoder.getstate()[0])
        count = 0
        while left > 0 and count < len(ids):
            left -= len(spelled_out(self._token_bytes, [ids[-1 - count]]))
            count += left >= 0
        return count

    def end(self) -> list[Delta]:
        """Deltas of what was held back until the end."""
        return list(self._parser.end())

    def finish(self) -> ParsedMessage:
        """The whole message."""
        return self._parser.finish()


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """Deltas of which no two that follow each other are text, or reasoning."""
    made: list[Delta] = []
    for delta in deltas:
        last = made[-1] if made else None
        if isinstance(delta, TextDelta) and isinstance(last, TextDelta):
            made[-1] = TextDelta(last.text + delta.text)
        elif isinstance(delta, ReasoningDelta) and isinstance(last, ReasoningDelta):
            made[-1] = ReasoningDelta(last.text + delta.text)
        else:
            made.append(delta)
    return made


def spelled_out(token_bytes: Sequence[bytes], ids: Iterable[int]) -> bytes:
    """Bytes of tokens as a parser reads them: control tokens are part of them, ids that only the model has are not."""
    size = len(token_bytes)
    return b"".join([token_bytes[i] for i in ids if 0 <= i < size])
