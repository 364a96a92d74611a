"""Incremental splitting of a model's output into the regions of a response template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import regex

from agentkv_runtime.formats.nesting import Nesting
from agentkv_runtime.formats.template import Anchor, Field, ResponseTemplate

__all__ = ["Region", "Regions", "Step"]

_KEPT = 1024  # characters behind the reader that patterns may look back at


@dataclass(slots=True)
class Region:
    """A span of text that belongs to a field."""

    entry: Field
    captures: Mapping[str, str]
    nesting: Nesting | None = None
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The whole text of the region so far."""
        return "".join(self.parts)


class Step(NamedTuple):
    """An event of a region: its beginning (empty `text`), a further piece of `text`, or its end."""

    region: Region
    text: str = ""
    ended: bool = False
    closed: bool = False
    """Whether the region ended as its template says, and was not cut off before its end marker."""

    @property
    def begins(self) -> bool:
        """Whether the region begins with this step."""
        return not self.text and not self.ended


class _Found(NamedTuple):
    match: regex.Match[str]
    entry: Field
    opens: bool

    def order(self) -> tuple[int, int, bool, str]:
        """Sort key: the earliest match first, then the longest, then opening ones, then by name."""
        return self.match.start(), self.match.start() - self.match.end(), not self.opens, self.entry.name


class Regions:
    """Splits text that is fed in pieces of any size; withholds a possible beginning of an anchor until decided."""

    def __init__(self, template: ResponseTemplate, ends: Sequence[str] = ()) -> None:
        self._template = template
        self._ends = ends
        self._text = ""
        self._at = 0
        self._region: Region | None = None  # None between regions, until there is text for the implicit one

    @property
    def current(self) -> Field | None:
        """Field that further text would belong to; None for text outside of all fields."""
        return self._region.entry if self._region else self._template.implicit

    @property
    def held(self) -> str:
        """Text that may begin an anchor, so that it is of no region yet."""
        return self._text[self._at :]

    def feed(self, text: str) -> Iterator[Step]:
        """Reads more text. The caller must exhaust the iterator."""
        self._text += text
        yield from self._read(ended=False)
        if self._at > 2 * _KEPT:
            self._text, self._at = self._text[self._at - _KEPT :], _KEPT

    def finish(self) -> Iterator[Step]:
        """Ends the text and yields the last steps. The caller must exhaust the iterator."""
        yield from self._read(ended=True)
        yield from self._take(len(self._text))
        if self._region:
            closed = self._region.entry.closed
            yield self._end(closed=closed is None or any(map(closed.pattern.fullmatch, self._ends)))

    def _read(self, *, ended: bool) -> Iterator[Step]:
        while True:
            found, held = self._search(ended)
            if found is None:
                yield from self._take(held)
                return
            match = found.match
            yield from self._take(match.start())
            region = self._region
            if region and region.nesting and region.nesting.in_string and match.start() < len(self._text):
                yield from self._take(match.start() + 1)  # a string may say what closes a call
                continue
            self._at = match.end()
            if region:
                yield self._end(closed=True)
            if found.opens:
                groups = {name: text for name, text in match.groupdict().items() if text is not None}
                yield self._begin(found.entry, groups)
            elif not region and match.end() == match.start():
                return  # an end of no width, of nothing, would be found for ever

    def _search(self, ended: bool) -> tuple[_Found | None, int]:
        """The next anchor, None if none is certain yet, and the index up to which the text certainly contains none."""
        held = len(self._text)
        found: list[_Found] = []
        awaited = list(self._awaited())
        unread = set(self._text[self._at :])
        if not ended and not any(anchor.may_begin_in(unread) for _, anchor, _ in awaited):
            return None, held
        for entry, anchor, opens in awaited:
            match = anchor.search(self._text, self._at, ended=ended)
            if match is None:
                continue
            if not ended and anchor.may_grow(match, self._text):
                held = min(held, match.start())
            else:
                found.append(_Found(match, entry, opens))
        best = min(found, key=_Found.order, default=None)
        if best is not None and not ended and best.match.start() >= held:
            best = None
        return best, held

    def _awaited(self) -> Iterator[tuple[Field, Anchor, bool]]:
        implicit = self._template.implicit
        if self._region and self._region.entry is not implicit:
            if self._region.entry.closed:
                yield self._region.entry, self._region.entry.closed, False
            return
        for entry in self._template.fields.values():
            if entry.opened:
                yield entry, entry.opened, True
        if implicit and implicit.closed:
            yield implicit, implicit.closed, False

    def _take(self, end: int) -> Iterator[Step]:
        """Appends the text up to `end` to the current or the implicit region."""
        text, self._at = self._text[self._at : end], max(self._at, end)
        if not text:
            return
        if self._region is None:
            if self._template.implicit is None:
                return
            yield self._begin(self._template.implicit, {})
        assert self._region is not None
        self._region.parts.append(text)
        if self._region.nesting:
            self._region.nesting.read(text)
        yield Step(self._region, text)

    def _begin(self, entry: Field, captures: Mapping[str, str]) -> Step:
        self._region = Region(entry, captures, _nesting(entry))
        return Step(self._region)

    def _end(self, *, closed: bool) -> Step:
        assert self._region is not None
        region, self._region = self._region, None
        return Step(region, ended=True, closed=closed)


def _nesting(entry: Field) -> Nesting | None:
    """Tracker of string literals in a field's regions; None for content without strings."""
    if entry.content == "pythonic":
        return Nesting("\"'")
    lax = entry.content_args.get("string_delims") or entry.content_args.get("allow_non_json")
    return Nesting() if entry.content == "json" and entry.opened and not lax else None
