"""Language side of an open model: prompts to tokens, tokens to messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .._types.errors import ModelError
from .call_habits import CallHabits, Rescue
from .prompt import PromptEncoder
from .reply import ReplyParser, ReplyReader, spelled_out
from .template import TemplateRenderer
from .tokenizer import Detokenizer, Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from agentkv_runtime.formats import Format
    from agentkv_runtime.text.tokenizer import Tokenizer as ModelTokenizer

    from .call_format import CallFormat

_LONGEST_OPENING = 64  # tokens in which a template may begin a message


class ChatModel:
    """Tokenizer, chat template and call format of a Context's model.

    Attributes:
        tokenizer: the public tokenizer.
        encoder: converts prompts to tokens.
        reader: parses generated tokens into messages.
        detokenizer: converts tokens to text.
        habits: the call format, adapted to how the model writes calls.
        call_format: the user's choice of a call format; None to detect it from the tokenizer.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        call_format: CallFormat | None,
        *,
        path: Path,
        vocab_size: int,
        max_prompt: int,
        max_positions: int | None,
        rescue: Rescue,
    ) -> None:
        self._tokenizer = tokenizer
        self._path = path
        self._rescue = rescue
        self.call_format = call_format
        self.habits = CallHabits(self._find_format, rescue)
        self.detokenizer = Detokenizer(tokenizer)
        self.reader = ReplyReader(tokenizer, lambda: self.format)
        chat = TemplateRenderer(tokenizer, self.reader.find_format)
        self.encoder = PromptEncoder(tokenizer, chat, self.reader, vocab_size, max_prompt, max_positions)
        self.tokenizer = Tokenizer(tokenizer, chat, vocab_size)

    @property
    def format(self) -> Format:
        """Format by which the model's output is parsed. Raises ModelError if the model folder has an invalid one."""
        return self.habits.format

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """Bytes of each token, special ones too."""
        return self.tokenizer.token_bytes()

    @cached_property
    def call_end_tokens(self) -> frozenset[int]:
        """Tokens that may complete a call: those whose bytes contain the last byte of a call's end."""
        ends = {character.encode()[-1] for character in self.format.call_ends}
        return frozenset(i for i, spelled in enumerate(self.token_bytes) if not ends.isdisjoint(spelled))

    def conversation_tokens(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        *,
        reply: bool,
    ) -> list[int]:
        """Ids of a conversation; with `reply` up to where the assistant speaks. In any thread. Raises InvalidInput."""
        own = self.tokenizer
        if reply:
            rendered = own._render_reply(messages, tools, variables)
        else:
            rendered = own._render(messages, tools, reply=False, variables=variables)
        return self._tokenizer.encode_rendered(rendered)

    def reply_parser(self, prefix: str, tools: Sequence[Mapping[str, Any]]) -> ReplyParser:
        """Reads a message of which the prompt has `prefix`, with calls of these tools."""
        return ReplyParser(self.format, self.token_bytes, prefix, tools)

    def begun_in(self, tokens: Sequence[int]) -> str:
        """The beginning of a message that the template wrote at the end of a prompt, such as `<think>`."""
        written = spelled_out(self.token_bytes, tokens[-_LONGEST_OPENING:]).decode("utf-8", "replace")
        return self.format.template.begun_in(written)

    def _find_format(self) -> Format:
        from agentkv_runtime.formats import find_format

        try:
            return find_format(self._tokenizer, self.call_format, rescue=self._rescue is not False)
        except ValueError as error:
            raise ModelError(f"{self._path}: {error}; or pass call_format (--call-format) when opening") from error
