"""Incremental parser of a model's output into a message."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentkv_runtime.formats.calls import CallReader, region_value
from agentkv_runtime.formats.casts import schemas_of
from agentkv_runtime.formats.dressed import DressedCalls
from agentkv_runtime.formats.parsed import (
    CUT_OFF,
    ArgumentsDelta,
    CallClosed,
    CallOpened,
    Delta,
    ParsedCall,
    ParsedMessage,
    ReasoningDelta,
    TextDelta,
)
from agentkv_runtime.formats.regions import Regions, Step
from agentkv_runtime.formats.template import ResponseTemplate

__all__ = ["REASONING", "MessageParser"]

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of the field of reasoning in response templates."""


class MessageParser:
    """Parses the text of one message, fed in pieces of any size. The deltas depend on the pieces, their sum does not.

    Args:
        template: response template that describes the text.
        prefix: the prompt, or its part of the reply: templates often write its beginning, such as `<think>`.
        tools: tool definitions; arguments that the model writes as bare text are cast to the types of their schemas.
        ends: texts of the tokens that end a generation; if one of them closes a call, the end of the text does, too.
        dressed: finds calls in other spellings in the content; None leaves them there as text.
    """

    def __init__(
        self,
        template: ResponseTemplate,
        *,
        prefix: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        ends: Sequence[str] = (),
        dressed: DressedCalls | None = None,
    ) -> None:
        self._template = template
        self._schemas = schemas_of(tools)
        self._regions = Regions(template, ends)
        self._fields: dict[str, Any] = {}
        self._calls: list[ParsedCall] = []
        self._reader: CallReader | None = None
        self._shown = _Shown()
        self._dressed: DressedCalls | None = None  # what stands in the prompt is text
        self._content: list[str] = []  # that is no call, where those are looked for
        self._found = False  # some in another spelling
        self.deltas_of_prefix: list[Delta] = self.feed(template.reply_in(prefix))
        """Deltas of the part of the reply that is in the prompt."""
        self._dressed = dressed

    @property
    def in_reasoning(self) -> bool:
        """Whether further text would belong to the reasoning."""
        current = self._regions.current
        return current is not None and current.name in REASONING

    @property
    def in_call(self) -> bool:
        """Whether further text would belong to a call."""
        current = self._regions.current
        return current is not None and current.name == "tool_calls"

    @property
    def held(self) -> str:
        """The end of the text so far that is in no delta, as it may be a call or the beginning of a marker."""
        held = self._dressed.held if self._dressed and not self.in_call and not self.in_reasoning else ""
        held += self._regions.held
        return held if held.strip() else ""

    def feed(self, text: str) -> list[Delta]:
        """Reads more text, special tokens included; withholds a possible beginning of a marker until more text comes.

        Raises FormatError for a pattern of the template that exceeds its time limit.
        """
        return [delta for step in self._regions.feed(text) for delta in self._deltas(step)]

    def end(self) -> list[Delta]:
        """Ends the text and returns the last deltas. Closes calls that were cut off with an `error`."""
        return [
            *(delta for step in self._regions.finish() for delta in self._deltas(step)),
            *self._held_back(goes_on=False),
        ]

    def finish(self) -> ParsedMessage:
        """Ends the text and returns the message."""
        self.end()
        given = {**self._template.defaults, **self._fields}
        fields = {name: value for name, value in given.items() if name in self._template.defaults or not _empty(value)}
        content = _as_text(fields.pop("content", ""))
        if self._found:
            content = "".join(self._content).strip()
        reasoning = [_as_text(fields.pop(name)) for name in REASONING if name in fields]
        return ParsedMessage(content, "".join(reasoning[:1]), tuple(self._calls), fields)

    def _deltas(self, step: Step) -> Iterator[Delta]:
        entry = step.region.entry
        if entry.name == "tool_calls":
            yield from self._call_deltas(step)
            return
        kind = TextDelta if entry.name == "content" else ReasoningDelta if entry.name in REASONING else None
        shown = self._shown.text(step, again=entry.name in self._fields)
        if kind is TextDelta:
            yield from self._text(self._dressed.feed(shown) if self._dressed else shown)
        elif kind and shown:
            yield kind(shown)
        if step.ended:
            self._set(step)

    def _text(self, text: str) -> Iterator[Delta]:
        """Records and yields content that is no call."""
        self._content.append(text)
        if text:
            yield TextDelta(text)

    def _held_back(self, *, goes_on: bool) -> Iterator[Delta]:
        """Yields the deltas of the withheld content where it ends: calls in other spellings, or text."""
        if self._dressed is None:
            return
        held, read = self._dressed.held, self._dressed.end(goes_on=goes_on)
        changed = read.text != held
        self._found = self._found or changed
        yield from self._text(read.text.rstrip() if changed else held)
        for call in read.calls:
            yield CallOpened(len(self._calls), call.name)
            if call.error is None:
                yield ArgumentsDelta(len(self._calls), json.dumps(call.arguments, ensure_ascii=False))
            yield CallClosed(len(self._calls), call)
            self._calls.append(call)

    def _call_deltas(self, step: Step) -> Iterator[Delta]:
        if self._reader is None:
            yield from self._held_back(goes_on=True)
            self._reader = CallReader(step.region, len(self._calls), self._schemas)
            yield from self._reader.begin()
        yield from map(self._repaired, self._reader.feed(step.text))
        if step.ended:
            yield from map(self._repaired, self._reader.end(closed=step.closed))
            self._calls.extend(map(self._repaired_call, self._reader.closed))
            self._reader = None

    def _repaired(self, delta: Delta) -> Delta:
        return replace(delta, call=self._repaired_call(delta.call)) if isinstance(delta, CallClosed) else delta

    def _repaired_call(self, call: ParsedCall) -> ParsedCall:
        """A call between the template's markers, read in another spelling if it is invalid and not cut off."""
        if call.error in (None, CUT_OFF) or self._dressed is None:
            return call
        read = self._dressed.read(call.raw)
        return read.calls[0] if len(read.calls) == 1 and not read.text.strip() else call

    def _set(self, step: Step) -> None:
        entry, name = step.region.entry, step.region.entry.name
        try:
            value = region_value(entry, step.region.text, step.region.captures)
        except (ValueError, RecursionError):
            value = step.region.text
        if entry.join is not None:
            value = self._fields[name] + entry.join + _as_text(value) if name in self._fields else _as_text(value)
        elif entry.repeats:
            value = [*self._fields.get(name, []), value]
        self._fields[name] = value


class _Shown:
    """Strips a region's text of surrounding white space piece by piece, so that deltas add up to the region's value."""

    def __init__(self) -> None:
        self._before = ""
        self._held = ""
        self._begun = False

    def text(self, step: Step, *, again: bool) -> str:
        """Text of a step that can be shown now. `again` says whether the field has a value already."""
        entry = step.region.entry
        if step.begins:
            self._before, self._held, self._begun = (entry.join or "") if again else "", "", False
            return ""
        shown = step.text
        if entry.content_args.get("strip", True):
            shown = self._held + shown if self._begun else (self._held + shown).lstrip()
            self._held = shown[len(shown.rstrip()) :]
            shown = shown[: len(shown) - len(self._held)]
        if shown or step.ended:
            self._begun = self._begun or bool(shown)
            shown, self._before = self._before + shown, ""
        return shown


def _empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
