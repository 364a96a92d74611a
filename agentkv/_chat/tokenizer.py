"""The tokenizer of an open model, and incremental text of generated tokens.

An incomplete character has no text yet: the token that completes it gets the whole character. It becomes U+FFFD once
something else follows.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from agentkv_runtime.errors import TemplateTimeout

from .._types.checks import ChatMessage, checked_bool, checked_count, checked_ids, checked_text
from .._types.errors import InvalidInput
from .._types.show import preview
from .messages import checked_messages, checked_tools
from .template import MOST_SECONDS, TemplateRenderer, template_errors
from .tool_results import in_call_order

if TYPE_CHECKING:
    from agentkv_runtime.text.added_tokens import ControlledText
    from agentkv_runtime.text.tokenizer import Tokenizer as RuntimeTokenizer


_MOST_IDS = 1 << 22  # entries of a table


class Tokenizer:
    """Converts text to ids and back, and conversations to ids: `Context.tokenizer`. All methods are synchronous.

    All methods raise InvalidInput for invalid arguments.
    """

    def __init__(self, tokenizer: RuntimeTokenizer, chat: TemplateRenderer, model_vocab_size: int) -> None:
        """Private: use `Context.tokenizer`."""
        self._tokenizer = tokenizer
        self._chat = chat
        self._ids = max(tokenizer.vocab_size, model_vocab_size)

    @property
    def vocab_size(self) -> int:
        """One past the highest id, added tokens included. `ModelInfo.vocab_size` may be larger: models are padded."""
        return self._tokenizer.vocab_size

    @property
    def eos_ids(self) -> list[int]:
        """Ids that end a generation."""
        return list(self._tokenizer.eos_ids)

    @property
    def special_ids(self) -> list[int]:
        """Ids without text: control tokens and end tokens."""
        return list(self._tokenizer.special_ids)

    @property
    def bos_ids(self) -> list[int]:
        """Ids that the model expects at the beginning of a text: often one, often none."""
        return list(self._tokenizer.bos_ids)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template, which `apply_chat` needs."""
        return self._tokenizer.has_chat_template

    @property
    def template_variables(self) -> frozenset[str]:
        """Names of the variables that the chat template reads, such as `messages` and `enable_thinking`."""
        return self._tokenizer.template_variables

    def encode(self, text: str, *, bos: bool = False, parse_special: bool = True) -> list[int]:
        """Encodes a text. `bos` prepends `bos_ids`; with `parse_special=False` the text of an added token (control
        tokens, `<tool_call>` and the like) is encoded as plain text, as untrusted input needs."""
        if not isinstance(text, str | bytes):
            raise InvalidInput(f"text is a {type(text).__name__}, but it must be a str")
        bos, parse_special = checked_bool(bos, "bos"), checked_bool(parse_special, "parse_special")
        return self._tokenizer.encode(checked_text(text, "text"), bos=bos, parse_special=parse_special)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Decodes ids to text. Bytes that are not UTF-8 become U+FFFD; padding ids, which only the model has, become
        nothing."""
        skip_special = checked_bool(skip_special, "skip_special")
        if not isinstance(ids, np.ndarray):
            try:
                ids = list(ids)
            except Exception:
                raise InvalidInput(f"ids are {preview(ids)}, but they must be a list of ints") from None
        tokens = checked_ids(ids, self._ids)
        size = self._tokenizer.vocab_size
        return self._tokenizer.decode([i for i in tokens if i < size], skip_special=skip_special)

    def token_bytes(self, size: int | None = None) -> list[bytes]:
        """The bytes of each id; joined, they are the text. `size` pads the list with empty entries up to the model's
        vocabulary."""
        size = self.vocab_size if size is None else checked_count(size, "size", 0, max(self._ids, _MOST_IDS))
        return self._tokenizer.token_bytes(size)

    def apply_chat(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Encodes a conversation with the model's chat template.

        Control tokens come from the template alone: in messages and tools their spellings are plain text. A message's
        `role` is written into the template's markup; do not take it from untrusted input.

        Args:
            messages: mappings with a `role` and a `content`.
            tools: tool definitions.
            add_generation_prompt: open the assistant's turn.
            variables: for the template, such as `enable_thinking=False`.

        Raises:
            InvalidInput: malformed messages or tools, no template, or a template that refuses them or does not end.
        """
        return self._tokenizer.encode_rendered(self._render(messages, tools, add_generation_prompt, variables))

    def render_chat(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The text that `apply_chat` encodes. Raises as `apply_chat`."""
        return self._render(messages, tools, add_generation_prompt, variables).text

    def _render_reply(
        self, messages: Sequence[ChatMessage], tools: object, variables: Mapping[str, Any]
    ) -> ControlledText:
        """Renders the prompt of a reply, or of the continuation of the assistant's last message."""
        checked, definitions = checked_messages(messages), checked_tools(tools)
        ordered = [checked[place] for place in in_call_order(checked)]
        try:
            with template_errors():
                return self._chat.render_reply(ordered, definitions, variables, MOST_SECONDS, lambda _: None).text
        except TemplateTimeout as error:
            raise InvalidInput(str(error)) from error

    def _render(self, messages: object, tools: object, reply: object, variables: Mapping[str, Any]) -> ControlledText:
        checked, definitions = checked_messages(messages), checked_tools(tools)
        opened = checked_bool(reply, "add_generation_prompt")
        try:
            with template_errors():
                return self._chat.render(checked, definitions, opened, variables, MOST_SECONDS, lambda _: None)
        except TemplateTimeout as error:
            raise InvalidInput(str(error)) from error


_LONGEST_BEGINNING = 3  # bytes of a character without its last
_ENDED = ("eos", "stop")  # by the model or a stop string, behind which nothing ends a character


def text_decoder(begun: bytes = b"") -> codecs.IncrementalDecoder:
    """An incremental UTF-8 decoder (errors replaced) that has read `begun`, the beginning of a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(begun)
    return decoder


def text_of_generation(spelled: bytes, finish_reason: str | None) -> str:
    """Decodes generated bytes; an incomplete character at the end is left out unless the generation is ended."""
    return text_decoder().decode(spelled, final=is_ended(finish_reason))


def is_ended(finish_reason: str | None) -> bool:
    """Returns whether an incomplete character at the end stays incomplete: after an end token or a stop string."""
    return finish_reason in _ENDED


def beginning(spelled: bytes) -> bytes:
    """The trailing bytes that are an incomplete character."""
    decoder = text_decoder()
    decoder.decode(spelled[-_LONGEST_BEGINNING:])
    return decoder.getstate()[0]


class Detokenizer:
    """Converts a model's tokens to text. Bytes that are not UTF-8 become U+FFFD; padding ids become nothing."""

    def __init__(self, tokenizer: RuntimeTokenizer) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _bytes(self) -> list[bytes]:
        return self._tokenizer.token_bytes()

    @cached_property
    def _special(self) -> frozenset[int]:
        return frozenset(self._tokenizer.special_ids)

    def text_of(self, token: int) -> str:
        """Text of one token by itself, special ones included."""
        return self.bytes_of(token).decode("utf-8", "replace")

    def begun(self, tokens: Sequence[int]) -> bytes:
        """Bytes of an incomplete character at the end of the tokens."""
        spelled = b""
        for token in reversed(tokens):
            if token in self._special or len(spelled) >= _LONGEST_BEGINNING:
                break
            spelled = self.bytes_of(token) + spelled
        return beginning(spelled)

    def whole(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones included, without an incomplete character at the end."""
        begun, end, cut = len(self.begun(tokens)), len(tokens), b""
        while begun and (len(cut) < begun or cut[0] & 0xC0 == 0x80):  # back to where a character begins
            end -= 1
            cut = self.bytes_of(tokens[end]) + cut
        ids = [token for token in tokens[:end] if token < self._tokenizer.vocab_size]
        return self._tokenizer.decode(ids, skip_special=False) + cut[: len(cut) - begun].decode("utf-8", "replace")

    def visible_bytes(self, tokens: Iterable[int]) -> bytes:
        """Bytes of tokens without special ones; the end may be an incomplete character."""
        return b"".join(self.bytes_of(token) for token in tokens if token not in self._special)

    def bytes_of(self, token: int) -> bytes:
        """Bytes of one token, special ones included."""
        return self._bytes[token] if token < len(self._bytes) else b""
