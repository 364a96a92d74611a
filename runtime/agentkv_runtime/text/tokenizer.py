"""The tokenizer of a model folder: text to ids, ids to bytes, chat messages to ids. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as _Tokenizer

from agentkv_runtime.errors import TokenizerError
from agentkv_runtime.folder.small_files import read_bytes, read_object
from agentkv_runtime.text.added_tokens import AddedTokens, ControlledText
from agentkv_runtime.text.chat import ChatTemplate
from agentkv_runtime.text.chat_templates import DEFAULT, TEMPLATE_FILES, TOOL_USE, read_templates
from agentkv_runtime.text.ends_of_turn import written_end
from agentkv_runtime.text.token_bytes import MOST_IDS, TokenBytes, checked_size

__all__ = ["TOKENIZER_FILES", "Tokenizer"]

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", *TEMPLATE_FILES)
"""Files that `Tokenizer.from_folder` reads, relative to the folder; all but the first may be missing."""

RENDER_SECONDS = 10.0  # that a chat template may run
_MOST_TOKENIZER_BYTES = 256 << 20  # the largest vocabularies take some 35 MB
_NAMED_SPECIALS = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """Built with `from_folder`. Immutable and safe to share between threads."""

    def __init__(
        self,
        tokenizer: _Tokenizer,
        *,
        config: Mapping[str, Any] | None = None,
        generation_config: Mapping[str, Any] | None = None,
        chat_template: str | Mapping[str, str] | None = None,
    ) -> None:
        """`chat_template` is one template, or several by name, of which one is "default"."""
        self._tokenizer = tokenizer
        self._config = dict(config or {})
        self._generation_config = dict(generation_config or {})
        self._vocabulary = tokenizer.get_vocab(with_added_tokens=True)  # until the table is made: it takes 0.1 s
        self._vocabulary_size = checked_size(self._vocabulary)
        self._added = AddedTokens(tokenizer)
        sources = {DEFAULT: chat_template} if isinstance(chat_template, str) else chat_template or {}
        specials = self._named_specials()
        self._templates = {name: ChatTemplate(source, specials, self._added) for name, source in sources.items()}

    @classmethod
    def from_folder(cls, path: str | Path, library: _Tokenizer | None = None) -> Tokenizer:
        """Reads `tokenizer.json` (or takes the `library` that it was written from) and, where present,
        `tokenizer_config.json`, `generation_config.json` (else `config.json`) and chat templates.

        Raises TokenizerError.
        """
        path = Path(path)
        tokenizer = _read_library(path) if library is None else library
        # A saved tokenizer may carry the limits it was trained under.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        config = read_object(path / "tokenizer_config.json", TokenizerError)
        return cls(
            tokenizer,
            config=config,
            generation_config=read_object(path / "generation_config.json", TokenizerError)
            or read_object(path / "config.json", TokenizerError),
            chat_template=read_templates(path, config),
        )

    @property
    def vocab_size(self) -> int:
        """One past the highest id, added tokens included. A model's logits may have more columns."""
        return self._vocabulary_size

    @cached_property
    def eos_ids(self) -> list[int]:
        """Ids that end a generation: those of generation_config.json, the tokenizer's own end token, and the token that
        the chat template writes after an assistant's message. Raises TokenizerError for an id out of range."""
        declared = self._generation_config.get("eos_token_id")
        ids = declared if isinstance(declared, list) else [declared]
        found = [i for i in ids if isinstance(i, int) and not isinstance(i, bool)]
        for i in found:
            if not 0 <= i < MOST_IDS:
                raise TokenizerError(f"eos_token_id is {i}, but ids are from 0 to {MOST_IDS - 1}; mend its config")
        more = (self._id_of(self._named_specials().get("eos_token")), written_end(self))
        return list(dict.fromkeys([*found, *(i for i in more if i is not None)]))

    @property
    def ends(self) -> tuple[str, ...]:
        """Texts of the tokens in `eos_ids`; ids outside the vocabulary are left out."""
        return tuple(self.decode([i], skip_special=False) for i in self.eos_ids if i < self.vocab_size)

    @cached_property
    def special_ids(self) -> list[int]:
        """Ids that stand for no text: control tokens and ends."""
        added = self._tokenizer.get_added_tokens_decoder()
        return sorted({i for i, token in added.items() if token.special} | set(self.eos_ids))

    @cached_property
    def bos_ids(self) -> list[int]:
        """Ids that the tokenizer puts in front of a text: often one, often none."""
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        framed = self._tokenizer.encode("a", add_special_tokens=True).ids
        for start in range(len(framed) - len(bare) + 1):
            if framed[start : start + len(bare)] == bare:
                return framed[:start]
        return []

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat` works."""
        return bool(self._templates)

    @property
    def response_template(self) -> Mapping[str, Any] | None:
        """The response template of tokenizer_config.json: how to read the model's output. None without one."""
        template = self._config.get("response_template")
        return template if isinstance(template, dict) else None

    @cached_property
    def added_ids(self) -> dict[str, int]:
        """Ids of the added tokens, special or not, by what they spell; without those of white space."""
        return self._added.ids

    def knows(self, text: str) -> bool:
        """Whether `text` is an added token or part of a chat template."""
        return text in self.added_ids or any(template.writes(text) for template in self._templates.values())

    def names_role(self, role: str) -> bool:
        """Whether a chat template names a role of messages."""
        return any(template.names(role) for template in self._templates.values())

    @property
    def template_variables(self) -> frozenset[str]:
        """Names that the chat templates read, such as `enable_thinking`."""
        return frozenset().union(*(template.variables for template in self._templates.values()))

    @property
    def reasoning_name(self) -> str | None:
        """Key of a message under which the chat template reads its reasoning; None if it reads none."""
        names = (template.reasoning_name for template in self._templates.values())
        return next((name for name in names if name is not None), None)

    def encode(self, text: str, *, bos: bool = False, parse_special: bool = True) -> list[int]:
        """Ids of a text. `bos` puts `bos_ids` in front; with `parse_special=False` an added token that is spelled out
        in the text stays plain text, which is what untrusted input needs."""
        if not parse_special:
            return (self.bos_ids if bos else []) + self._added.encode(ControlledText(text, ()))
        ids = self._added.encode(ControlledText(text))
        return self.after_bos(ids) if bos else ids

    def after_bos(self, ids: list[int]) -> list[int]:
        """Ids with `bos_ids` in front, unless they begin with them."""
        return ids if ids[: len(self.bos_ids)] == self.bos_ids else self.bos_ids + ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of ids; bytes that are no UTF-8 become U+FFFD. Raises TokenizerError for ids out of range."""
        skipped = set(self.special_ids) if skip_special else set()
        ids, size = list(ids), self.vocab_size
        for i in ids:
            if not 0 <= i < size:
                raise TokenizerError(f"token id {i} is outside the vocabulary of {size}")
        kept = [i for i in ids if i not in skipped]
        # What the decoder would read as bytes or marks of spaces, though it spells itself.
        literal = [place for place, i in enumerate(kept) if i in self._literal]
        texts = []
        for begin, end in pairwise([-1, *literal, len(kept)]):
            texts.append(self._tokenizer.decode(kept[begin + 1 : end], skip_special_tokens=False))
            texts.append(self._literal[kept[end]] if end < len(kept) else "")
        return "".join(texts)

    def token_bytes(self, size: int | None = None) -> list[bytes]:
        """Bytes of each id, whose concatenation is the text; `size` pads the list with empty entries to that length."""
        table = self._bytes
        return table + [b""] * ((size or 0) - len(table))

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of a text's number of tokens, computed without encoding it; 0 where none is known."""
        if not self._token_bytes.lossless:
            return 0
        # Some control tokens take the white space beside them, and normal forms make one byte of up to four.
        size = len(text.encode("utf-8", "replace").translate(None, b" \t\r\n"))
        return size // (max(map(len, self._bytes), default=1) * (1 if self._tokenizer.normalizer is None else 4))

    def apply_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Ids of a conversation under the model's chat template. `variables` go to the template, such as
        `enable_thinking=False`. Only the template itself writes control tokens: those that messages, tools or documents
        spell out are text. Raises TokenizerError when there is no template or it refuses the messages."""
        return self.encode_rendered(self.render(messages, tools or None, add_generation_prompt, variables))

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The text that `apply_chat` encodes."""
        return self.render(messages, tools or None, add_generation_prompt, variables).text

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        seconds: float = RENDER_SECONDS,
        check: Callable[[str], None] = lambda _: None,
    ) -> ControlledText:
        """The text of a conversation, with the control tokens that its template wrote.

        With tools the template named `tool_use` renders it, if there is one. `check` gets the text before control
        tokens are looked for, and may raise. Raises TokenizerError, or TemplateTimeout after `seconds`.
        """
        template = self._templates.get(TOOL_USE if tools and TOOL_USE in self._templates else DEFAULT)
        if template is None:
            raise TokenizerError("the model has no chat template: pass a string that spells the conversation out")
        return template.render(messages, tools, add_generation_prompt, variables, seconds, check)

    def encode_rendered(self, text: ControlledText) -> list[int]:
        """Ids of a rendered text."""
        return self._added.encode(text)

    def encode_next(self, text: ControlledText, *, after_control: bool = False) -> list[int]:
        """Ids of a part of a rendered text that follows other text, or a control token (`after_control`)."""
        return self._added.encode_next(text, after_control=after_control)

    @property
    def added(self) -> AddedTokens:
        """The added tokens, which can be found in rendered texts."""
        return self._added

    @cached_property
    def _token_bytes(self) -> TokenBytes:
        return TokenBytes(self._tokenizer.decoder, self._tokenizer.get_added_tokens_decoder().keys())

    @cached_property
    def _literal(self) -> dict[int, str]:
        """Contents, by id, of added tokens that the library's decoder alters; without those of white space."""
        added = {i: token.content for i, token in self._tokenizer.get_added_tokens_decoder().items()}
        decoded = self._tokenizer.decode_batch([[i] for i in added], skip_special_tokens=False)
        return {
            i: added[i] for i, text in zip(added, decoded, strict=True) if text != added[i] and not added[i].isspace()
        }

    @cached_property
    def _bytes(self) -> list[bytes]:
        table = self._token_bytes.table(self._vocabulary)
        self._vocabulary = {}
        return table

    def _named_specials(self) -> dict[str, str]:
        named: dict[str, str] = {}
        for name in _NAMED_SPECIALS:
            token = self._config.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                named[name] = token
        return named

    def _id_of(self, token: str | None) -> int | None:
        found: int | None = self._tokenizer.token_to_id(token) if token else None
        return found


def _read_library(path: Path) -> _Tokenizer:
    file = path / "tokenizer.json"
    if not os.path.lexists(file):
        raise TokenizerError(
            f"{path}: no tokenizer.json. A model that comes with tokenizer.model alone can be converted: load it "
            "with transformers' AutoTokenizer and call save_pretrained"
        )
    data = read_bytes(file, TokenizerError, most=_MOST_TOKENIZER_BYTES)
    try:
        return _Tokenizer.from_buffer(data)
    except Exception as error:
        raise TokenizerError(f"{file}: not a tokenizer: {error}. Download it again") from error
