"""Added tokens: found where a template wrote them, and never made from content that spells them."""

from __future__ import annotations

import json
import re
import secrets
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, models

__all__ = ["AddedTokens", "Control", "ControlledText"]

_SHORT = 8192  # characters
_SEQUENCES = ("normalizers", "pretokenizers")
# What makes parts of a tokenizer put nothing in front of a text.
_PREFIXES: dict[str, dict[str, Any]] = {
    "Prepend": {"prepend": ""},
    "Metaspace": {"prepend_scheme": "never"},
    "ByteLevel": {"add_prefix_space": False},
}


class Control(NamedTuple):
    """A control token in a text: its start, its end (with the white space that belongs to it), and its id."""

    start: int
    end: int
    id: int


@dataclass(frozen=True, slots=True)
class ControlledText:
    """A text and the control tokens in it. `controls` of None makes every spelling of one a control token."""

    text: str
    controls: Sequence[Control] | None = None

    def between(self, start: int, end: int) -> ControlledText:
        """The text from `start` to `end`, with the control tokens that begin there."""
        if self.controls is None:
            return ControlledText(self.text[start:end])
        inside = [
            Control(control.start - start, min(control.end, end) - start, control.id)
            for control in self.controls
            if start <= control.start < end
        ]
        return ControlledText(self.text[start:end], inside)


class AddedTokens:
    """The added tokens of one tokenizer, special or not.

    All of them are control tokens, except white space and single characters that are not special: some models write
    indentation, line breaks and rare letters with those, and they are always text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._controls: dict[int, AddedToken] = {}
        self._texts: list[AddedToken] = []
        for i, token in sorted(tokenizer.get_added_tokens_decoder().items()):
            letter = len(token.content) == 1 and not token.special
            if letter or token.content.replace("\u2581", " ").isspace():
                self._texts.append(token)
            else:
                self._controls[i] = token
        # What stands for a control token in a text that holds others as text. Nobody can guess it.
        secret = "".join(chr(0x2800 + byte) for byte in secrets.token_bytes(16))
        self._names = {i: secret + chr(0x2800 + n // 256) + chr(0x2800 + n % 256) for n, i in enumerate(self._controls)}
        # Control tokens that the model's own vocabulary holds too, so that its pieces may come together as one.
        self._in_vocabulary = {i for i in self._controls if tokenizer.model.id_to_token(i) is not None}
        self._plains: dict[tuple[bool, bool], _Plain] = {}

    @property
    def ids(self) -> dict[str, int]:
        """Ids of the control tokens, by their text."""
        return {token.content: i for i, token in self._controls.items()}

    @cached_property
    def alphabet(self) -> frozenset[str]:
        """Characters of control tokens, in all their forms, without white space."""
        spelled = {character for token in self._controls.values() for character in token.content}
        forms = {form for c in spelled for form in (c, unicodedata.normalize("NFKD", c))}
        cased = {case for form in forms for case in (form, form.upper(), form.lower())}
        return frozenset(c for text in cased for c in text if not c.isspace())

    def look_alikes(self, text: str) -> frozenset[str]:
        """Characters of a text that the tokenizer's normalizer may turn into characters of the alphabet."""
        normalizer = self._tokenizer.normalizer
        if not self._normalized or normalizer is None:
            return frozenset()
        return frozenset(c for c in set(text) if not c.isspace() and self.alphabet & set(normalizer.normalize_str(c)))

    def may_begin_in(self, texts: Iterable[str]) -> bool:
        """Whether a control token may begin inside one of the texts."""
        if self._normalized and self._tokenizer.normalizer is not None:
            return True
        return any(self._first.search(text) for text in texts)

    def may_begin_at_end_of(self, texts: Iterable[str]) -> bool:
        """Whether one of the texts ends with the beginning of a control token, which other text may complete."""
        longest = max(map(len, self._beginnings), default=0)
        return any(text[-n:] in self._beginnings for text in texts for n in range(1, longest + 1))

    def spelled_in(self, texts: Iterable[str]) -> bool:
        """Whether one of the texts spells a control token."""
        return any(self.find(text) for text in texts)

    def find(self, text: str) -> list[Control]:
        """All control tokens in a text, as the tokenizer finds them."""
        if len(text) <= _SHORT:
            encoding = self._locator.encode(text, add_special_tokens=False)
        else:
            [encoding] = self._locator.encode_batch([text], add_special_tokens=False)
        return [
            Control(start, end, self._located[i])
            for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
            if i in self._located
        ]

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Ids of the control tokens."""
        return frozenset(self._controls)

    def controls_in(self, text: ControlledText) -> Sequence[Control]:
        """The control tokens of a text: `text.controls`, or if that is None all that the text spells."""
        return self.find(text.text) if text.controls is None else text.controls

    def same(self, one: ControlledText, other: ControlledText) -> bool:
        """Whether two texts and their control tokens are equal, regardless of the white space that tokens include."""
        if one.text != other.text:
            return False
        if one.controls is None and other.controls is None:
            return True
        return [(c.start, c.id) for c in self.controls_in(one)] == [(c.start, c.id) for c in self.controls_in(other)]

    def encode_next(self, text: ControlledText, *, after_control: bool) -> list[int]:
        """Ids of a text that follows a control token (`after_control`) or other text.

        Some tokenizers put a space in front of the first text, and some in front of every text after a control token.
        """
        controls = self.controls_in(text)
        if after_control:
            wall = next(iter(self._controls))
            name = self._names[wall]
            moved = [Control(c.start + len(name), c.end + len(name), c.id) for c in controls]
            return self.encode(ControlledText(name + text.text, [Control(0, len(name), wall), *moved]))[1:]
        whole, end = ControlledText(text.text, controls), len(text.text)
        first = controls[0].start if controls else end
        return self._encode(whole.between(0, first), begins=False) + self.encode(whole.between(first, end))

    def encode(self, text: ControlledText) -> list[int]:
        """Ids of a text. Only `text.controls` become control tokens, or all that the text spells if that is None."""
        return _ids(self._tokenizer, text.text) if text.controls is None else self._encode(text, begins=True)

    def _encode(self, text: ControlledText, *, begins: bool) -> list[int]:
        parts, end = [], 0
        controls = text.controls or ()
        for control in controls:
            parts += [text.text[end : control.start], self._names[control.id]]
            end = control.end
        named = "".join([*parts, text.text[end:]])
        ids = self._plain(strict=False, begins=begins).encode(named)
        known = sum(control.id in self._in_vocabulary for control in controls)
        if sum(i in self._in_vocabulary for i in ids) > known:
            return self._plain(strict=True, begins=begins).encode(named)
        return ids

    @cached_property
    def _normalized(self) -> bool:
        return any(token.normalized for token in self._controls.values())

    @cached_property
    def _first(self) -> re.Pattern[str]:
        first = {token.content.lstrip()[0] for token in self._controls.values()}
        return re.compile(f"[{re.escape(''.join(sorted(first)))}]" if first else r"(?!)")

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        contents = [token.content for token in self._controls.values()]
        return frozenset(content[:n] for content in contents for n in range(1, len(content)))

    @cached_property
    def _locator(self) -> Tokenizer:
        """A tokenizer that knows only the control tokens, to locate them in texts."""
        locator = Tokenizer(models.WordLevel({"\0": 0}, unk_token="\0"))
        if self._tokenizer.normalizer is not None:
            locator.normalizer = self._tokenizer.normalizer
        locator.add_tokens([_like(token, token.content) for token in self._controls.values()])
        return locator

    @cached_property
    def _located(self) -> dict[int, int]:
        ids = _ids_of(self._locator, self._controls.values())
        return {ids[token.content]: i for i, token in self._controls.items()}

    def _plain(self, *, strict: bool, begins: bool) -> _Plain:
        """A tokenizer with secret names for control tokens.

        With `strict`, its model cannot build control tokens from pieces; with `begins`, it puts the original prefix in
        front of a text.
        """
        key = (strict, begins)
        if key not in self._plains:
            model = self._strict_model if strict else self._tokenizer.model
            self._plains[key] = _Plain(self._tokenizer, model, self._named(), self._texts, begins)
        return self._plains[key]

    @cached_property
    def _strict_model(self) -> models.Model:
        description = json.loads(self._tokenizer.to_str())
        description["added_tokens"] = []
        description["post_processor"] = None
        _unspell(description["model"], {i: self._names[i] + "\u2800" for i in self._in_vocabulary})
        model: models.Model = Tokenizer.from_str(json.dumps(description)).model
        return model

    def _named(self) -> dict[int, AddedToken]:
        # Found already, with their borders and white space: only when they are taken out of the text is left.
        return {i: AddedToken(self._names[i], normalized=token.normalized) for i, token in self._controls.items()}


class _Plain:
    """A tokenizer in which control tokens have other names."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        model: models.Model,
        named: dict[int, AddedToken],
        texts: list[AddedToken],
        begins: bool,
    ) -> None:
        parts = tokenizer if begins else _without_prefix(tokenizer)
        self._tokenizer = Tokenizer(model)
        if parts.normalizer is not None:
            self._tokenizer.normalizer = parts.normalizer
        if parts.pre_tokenizer is not None:
            self._tokenizer.pre_tokenizer = parts.pre_tokenizer
        self._tokenizer.add_tokens([*named.values(), *texts])
        theirs = {token.content: i for i, token in named.items()} | _ids_of(tokenizer, texts)
        self._own = {i: theirs[content] for content, i in _ids_of(self._tokenizer, [*named.values(), *texts]).items()}

    def encode(self, text: str) -> list[int]:
        own = self._own
        return [own.get(i, i) for i in _ids(self._tokenizer, text)]


def _without_prefix(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer with the same normalizer and pre-tokenizer, which put nothing in front of a text."""
    other = Tokenizer(models.WordLevel({"\0": 0}, unk_token="\0"))
    description = json.loads(other.to_str())
    for name in ("normalizer", "pre_tokenizer"):
        part = getattr(tokenizer, name)
        description[name] = _unprefixed(json.loads(part.__getstate__())) if part is not None else None
    return Tokenizer.from_str(json.dumps(description))


def _unprefixed(part: dict[str, Any]) -> dict[str, Any]:
    """A normalizer or pre-tokenizer, as JSON of tokenizer.json, without the prefix that it puts in front of a text."""
    inner = {name: [_unprefixed(each) for each in part[name]] for name in _SEQUENCES if name in part}
    return {**part, **inner, **_PREFIXES.get(part["type"], {})}


def _like(token: AddedToken, content: str) -> AddedToken:
    return AddedToken(
        content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
    )


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    if len(text) <= _SHORT:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    else:  # a batch of one lets other threads run
        ids = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def _ids_of(tokenizer: Tokenizer, tokens: Iterable[AddedToken]) -> dict[str, int]:
    ids = {token.content: tokenizer.token_to_id(token.content) for token in tokens}
    return {content: i for content, i in ids.items() if i is not None}


def _unspell(model: dict[str, Any], names: dict[int, str]) -> None:
    """Renames tokens of a model, as JSON of tokenizer.json, and removes the merges that make them."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # Unigram
        for i, name in names.items():
            vocabulary[i][0] = name
        return
    renamed = {token: names[i] for token, i in vocabulary.items() if i in names}
    model["vocab"] = {renamed.get(token, token): i for token, i in vocabulary.items()}
    if model.get("unk_token") in renamed:
        model["unk_token"] = renamed[model["unk_token"]]
    if "merges" in model:
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [pair for pair in pairs if not {*pair, "".join(pair)} & renamed.keys()]
