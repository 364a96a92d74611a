"""Response templates: the declarative description of a model's output that transformers (5.13 and later) reads from
`tokenizer_config.json`, loaded and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import regex

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.content import CONTENT, MATCH_SECONDS, check_args, check_transform

__all__ = ["Anchor", "Field", "ResponseTemplate", "load_template"]

_LOOKS_BACK = regex.compile(r"\(\?<[=!]|\\[AbBGKmM]|\^")
_TEMPLATE_KEYS = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
_FIELD_KEYS = {"open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join"} | {
    "optional",
    "transform",
    "transform_each",
}


@dataclass(frozen=True)
class Anchor:
    """Pattern of the beginning or the end of a region; a template may give it as alternative texts."""

    pattern: regex.Pattern[str]
    final: bool
    """Whether a match at the end of the text read so far is final, as further text cannot change it."""
    _beginnings: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)
    _others: set[str] = field(default_factory=set, repr=False, compare=False)

    def may_begin_with(self, character: str) -> bool:
        """Whether a match may begin with this character; a quick test that most text fails."""
        if character not in self._beginnings:
            looks_back = _LOOKS_BACK.search(self.pattern.pattern) is not None
            begins = looks_back or self.pattern.match(character, partial=True) is not None
            self._beginnings[character] = begins
            if not begins:
                self._others.add(character)
        return self._beginnings[character]

    def may_begin_in(self, characters: set[str]) -> bool:
        """Whether a match may begin with one of these characters."""
        return any(map(self.may_begin_with, characters - self._others))

    def search(self, text: str, start: int, *, ended: bool) -> regex.Match[str] | None:
        """The first match, or unless the text has `ended` a partial one. Raises FormatError for a pattern too slow."""
        try:
            match = self.pattern.search(text, start, partial=not ended, timeout=self._seconds)
            if ended or match is None or match.partial or self.final or match.end() < len(text):
                return match
            # A whole match is preferred to a partial one, although that may begin before it.
            for before in range(start, match.start()):
                if text[before] not in self._others and self.may_begin_with(text[before]):
                    partial = self.pattern.match(text, before, partial=True, timeout=self._seconds)
                    if partial is not None:
                        return partial
            return match
        except TimeoutError:
            raise FormatError(f"the pattern {self.pattern.pattern!r} takes more than {MATCH_SECONDS:g} s") from None

    @property
    def _seconds(self) -> float | None:
        return None if self.final else MATCH_SECONDS  # texts take no time, watching the clock does

    def may_grow(self, match: regex.Match[str], text: str) -> bool:
        """Whether further text may change a match."""
        if match.start() == match.end() and text[match.end() : match.end() + 2] in ("", "\n"):
            return True  # as `$` matches, also before a last line break
        return match.partial or (match.end() == len(text) and not self.final)


@dataclass(frozen=True)
class Field:
    """A field of the message: anchors of its regions, and parser and transform of their text."""

    name: str
    opened: Anchor | None
    closed: Anchor | None
    content: str = "text"
    content_args: Mapping[str, Any] = field(default_factory=dict)
    repeats: bool = False
    join: str | None = None
    optional: bool = True
    transform: Any = None
    transform_each: bool = False


@dataclass(frozen=True)
class ResponseTemplate:
    """A checked response template. `implicit` is the field of text outside of all regions."""

    start: Anchor
    fields: Mapping[str, Field]
    implicit: Field | None
    defaults: Mapping[str, Any]
    source: Mapping[str, Any]
    """The JSON object that the template was loaded from."""

    def reply_in(self, prompt: str) -> str:
        """The part of a reply that is in `prompt`: the text after its last start anchor, or without one all of it."""
        end = self._begins_at(prompt)
        return prompt if end is None else prompt[end:]

    def begun_in(self, prompt: str) -> str:
        """Like `reply_in`, for a whole prompt: empty if it has no start anchor."""
        end = self._begins_at(prompt)
        return "" if end is None else prompt[end:]

    def _begins_at(self, prompt: str) -> int | None:
        end = None
        try:
            for match in self.start.pattern.finditer(prompt, timeout=MATCH_SECONDS):
                end = match.end()
        except TimeoutError:
            raise FormatError(f"the start anchor takes more than {MATCH_SECONDS:g} s") from None
        return end


def load_template(source: object) -> ResponseTemplate:
    """Checks a response template as transformers does. Raises FormatError naming the field."""
    if not isinstance(source, Mapping):
        raise FormatError(f"a response template must be a mapping, and this is a {type(source).__name__}")
    if source.get("version", 1) != 1:
        raise FormatError(f"response template of version {source['version']!r}; version 1 can be read")
    _check_keys("the response template", source, _TEMPLATE_KEYS)
    defaults, fields = source.get("defaults", {}), source.get("fields")
    if not isinstance(defaults, Mapping):
        raise FormatError("defaults of a response template must be a mapping")
    if not isinstance(fields, Mapping) or not fields:
        raise FormatError("fields of a response template must be a mapping with at least one field")
    loaded = {name: _load_field(name, given) for name, given in fields.items()}
    implicit = [entry for entry in loaded.values() if entry.opened is None]
    if len(implicit) > 1:
        names = ", ".join(entry.name for entry in implicit)
        raise FormatError(f"only one field may go without `open`, for the text that is in no other; these do: {names}")
    start = _load_anchor("the response template", source, "start_anchor")
    if start is None:
        raise FormatError("a response template needs a start_anchor or a start_anchor_pattern")
    return ResponseTemplate(start, loaded, implicit[0] if implicit else None, dict(defaults), dict(source))


def _load_field(name: str, given: object) -> Field:
    what = f"field {name!r}"
    if not isinstance(given, Mapping):
        raise FormatError(f"{what} must be a mapping")
    _check_keys(what, given, _FIELD_KEYS)
    content, join = given.get("content", "text"), given.get("join")
    if content not in CONTENT:
        raise FormatError(f"{what} has the content {content!r}; known are {', '.join(sorted(CONTENT))}")
    check_args(what, content, given.get("content_args", {}))
    if join is not None and not (isinstance(join, str) and given.get("repeats", False)):
        raise FormatError(f"join of {what} must be a str, and needs `repeats`")
    opened, closed = _load_anchor(what, given, "open"), _load_anchor(what, given, "close")
    transform, each = given.get("transform"), given.get("transform_each", False)
    if not isinstance(each, bool) or (each and transform is None):
        raise FormatError(f"transform_each of {what} must be a bool, and needs a transform")
    groups = {group for anchor in (opened, closed) if anchor for group in anchor.pattern.groupindex}
    if transform is not None:
        check_transform(what, transform)
    elif groups:
        raise FormatError(f"{what} captures {', '.join(sorted(groups))}, which only a transform can use; it has none")
    return Field(
        name,
        opened,
        closed,
        content,
        given.get("content_args", {}),
        bool(given.get("repeats", False)),
        join,
        bool(given.get("optional", True)),
        transform,
        each,
    )


def _load_anchor(what: str, given: Mapping[str, Any], key: str) -> Anchor | None:
    """Loads the anchor under `key` (texts) or `key` + "_pattern"; None without one. Raises FormatError."""
    texts = given.get(key)
    if key in given and f"{key}_pattern" in given:
        raise FormatError(f"{what} has both {key} and {key}_pattern")
    if key in given:
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise FormatError(f"{key} of {what} must be a text that is not empty, or a list of them")
        extended = any(text != other and text.startswith(other) for text in texts for other in texts)
        longest_first = sorted(texts, key=len, reverse=True)
        return Anchor(regex.compile("|".join(map(regex.escape, longest_first)), regex.DOTALL), not extended)
    if f"{key}_pattern" not in given:
        return None
    try:
        return Anchor(regex.compile(given[f"{key}_pattern"], regex.DOTALL), False)
    except (regex.error, TypeError) as error:
        raise FormatError(f"{key}_pattern of {what} is no pattern: {error}") from error


def _check_keys(what: str, given: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(str(key) for key in given.keys() - known)
    if unknown:
        raise FormatError(f"{what} has the unknown keys {', '.join(unknown)}; known are {', '.join(sorted(known))}")
