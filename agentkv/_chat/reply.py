"""What a model generated, read as a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.parsed import TextDelta

from .._types.message import Message, ToolCall, as_mapping, call_id
from .tokenizer import Spelling

if TYPE_CHECKING:
    from agentkv_runtime.formats import Format
    from agentkv_runtime.text.tokenizer import Tokenizer

Tools = Sequence[Mapping[str, Any]] | None


class ReplyReader:
    """Makes messages of generated tokens, by the model's call format."""

    def __init__(self, tokenizer: Tokenizer, find_format: Callable[[], Format]) -> None:
        self._tokenizer = tokenizer
        self.find_format = find_format  # takes a few renderings, the first time
        self._ends = frozenset(tokenizer.eos_ids)
        self._spelling = Spelling(tokenizer)

    def text(self, log: Sequence[int], start: int) -> tuple[str, int]:
        """The text of the tokens from `start` on, control tokens included, and where they end: before end tokens."""
        end = len(log)
        while end > start and log[end - 1] in self._ends:
            end -= 1
        if end == len(log):
            return self._spelling.whole(log[start:]), end
        size = self._tokenizer.vocab_size
        return self._tokenizer.decode([i for i in log[start:end] if i < size], skip_special=False), end

    def message(self, text: str, prompt: str, tools: Tools, name_call: Callable[[int], str] = call_id) -> Message:
        """The message that a text is.

        Args:
            text: what was generated.
            prompt: what the template wrote before it; it may hold the beginning of the reply.
            tools: their definitions.
            name_call: gives the calls of the text their ids; they are counted from 0.
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
        """The message as the template gets it. One with calls that cannot be read is its text, and so is the reasoning
        where the template knows of none."""
        if any(call.error is not None for call in message.calls):
            return {"role": "assistant", "content": text}
        if message.reasoning is not None and self._tokenizer.reasoning_name is None:
            written = self.find_format().write(message.content, (), message.reasoning)
            message = replace(message, content=written, reasoning=None)
        return as_mapping(message)

    def agree(self, one: str, other: str, prompt: str, tools: Tools) -> bool:
        """Is the second text the message that the first is, or that and more? White space around its parts does not
        matter."""
        if one.strip() in other:
            return True
        return _essence(self.message(one, prompt, tools)) == _essence(self.message(other, prompt, tools))


def _essence(message: Message) -> tuple[object, ...]:
    return message.content.strip(), (message.reasoning or "").strip(), message.calls
