"""Spellings of calls: write given calls as text, and make the grammar of calls that a model is about to write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.call_spelling import CallSpelling, Tool
from agentkv_runtime.formats.lark import Lark
from agentkv_runtime.formats.thought import Markers

__all__ = ["MOST_CALLS", "Calls", "NoCalls", "Spelling", "Thinking", "Wanted", "WrittenCall"]

_UNKNOWN = (
    "how this model spells calls is not known. Name the format that it was trained on (call_format, on the command "
    "line --call-format), or give one of your own"
)

MOST_CALLS = 16
"""Default limit of calls in one message: some models never stop by themselves."""

WrittenCall = tuple[str, Mapping[str, Any]]
"""Name of a tool, and arguments."""
Thinking = tuple[str, str] | None
"""Opening and closing marker of the reasoning; None for models that do not reason."""


@dataclass(frozen=True)
class Wanted:
    """Constraints on the next message."""

    tools: Sequence[Tool] = ()
    """Tools that the message may call."""
    text: bool = True
    """Whether the message may be without calls."""
    output: Mapping[str, Any] | None = None
    """JSON schema of a message without calls; None for free text."""
    most_calls: int = MOST_CALLS
    """Largest number of calls."""
    thinking: Thinking = None
    """Markers of the reasoning; None for models that do not reason."""
    in_reasoning: bool = False
    """Whether the prompt has opened the reasoning."""
    answers: bool = False
    """Whether answers are calls, too."""
    markers: tuple[str, ...] = ()
    """Texts that the parser takes for the beginning of calls."""


class Spelling(ABC):
    """Spelling of calls, and their place in a message."""

    begins: str = ""
    """Pattern of the beginning of a message that is calls as a whole; empty for formats with an opener."""
    several: bool = True
    """Whether a message may make more than one call."""
    dress: str | None = None
    """Name of this spelling in `DressedCalls`; None if a response template reads it."""

    @property
    def opener(self) -> str:
        """Text before the first call; empty without one."""
        return ""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that the parser takes for the beginning of calls anywhere in a message, that of `opener` first."""
        return ()

    @abstractmethod
    def written(self, calls: Sequence[WrittenCall]) -> str:
        """Writes calls as the model does. Raises FormatError for calls that the spelling does not allow."""

    @abstractmethod
    def calls(self, lark: Lark, tools: Sequence[Tool], before: str, *, most: int) -> str:
        """Grammar expression of 1 to `most` calls after `before`, the end of `opener` that is still to be written."""

    def thought(self, thinking: Thinking) -> Markers | None:
        """Markers by which a budget of reasoning is counted; None for models that do not reason."""
        return Markers(*thinking) if thinking else None

    def write(self, content: str, calls: Sequence[WrittenCall], reasoning: str, thinking: Thinking) -> str:
        """Writes a message. Raises FormatError for calls that the format does not allow."""
        thought = f"{thinking[0]}\n{reasoning}\n{thinking[1]}\n\n" if reasoning and thinking else ""
        if not calls:
            return thought + content
        if content and self.begins:
            raise FormatError("in this format a message is text or calls, not both; leave one out")
        return thought + (content + "\n" if content else "") + self.written(calls)

    def message(self, lark: Lark, wanted: Wanted) -> str:
        """Grammar expression of the message."""
        controls = [*self.markers, *(wanted.thinking or ())[:1]]
        choices = []
        if wanted.tools:
            opened, rest = "", self.opener
            if wanted.text and wanted.output is None and self.markers:
                opened = lark.text_up_to(self.markers[0], controls[1:])
                rest = self.opener[len(self.markers[0]) :]
            choices.append(f"{opened} {self.calls(lark, wanted.tools, rest, most=wanted.most_calls)}".strip())
        if wanted.text and wanted.output is not None:
            choices.append(lark.json(wanted.output))
        elif wanted.text:
            choices.append(lark.free_text(controls, not_first=self.begins if wanted.tools else ""))
        return self.after_thought(lark, wanted, lark.either("body", choices))

    def after_thought(self, lark: Lark, wanted: Wanted, body: str) -> str:
        """Grammar expression of the reasoning followed by `body`."""
        if not wanted.thinking:
            return body
        gap = lark.rule("GAP", r"/\n{0,2}/")
        thought = f"{lark.text_up_to(wanted.thinking[1])} {gap}"
        if not wanted.in_reasoning:
            thought = f"({lark.text(wanted.thinking[0])} {thought})?"
        return f"{thought} {body}"


class NoCalls(Spelling):
    """Spelling of models whose calls are unknown: writing or constraining calls raises FormatError."""

    def written(self, calls: Sequence[WrittenCall]) -> str:  # noqa: D102
        raise FormatError(_UNKNOWN)

    def calls(self, lark: Lark, tools: Sequence[Tool], before: str, *, most: int) -> str:  # noqa: D102
        raise FormatError(_UNKNOWN)


@dataclass(frozen=True)
class Calls(Spelling):
    """Calls one after another, with markers around each and around all of them.

    Attributes:
        call: spelling of one call.
        before, after, between: texts around each call, and from one to the next.
        section: texts around all of them.
        several: whether a message may make more than one call.
        begins: pattern of the beginning of a message that is calls as a whole, for formats without an opener.
        marker: text that the parser takes for the beginning of calls, if that is less than `opener`.
        also: further texts that the parser takes for the beginning of calls.
        dress: name of this spelling in `DressedCalls`, such as "json"; None if a response template reads it.
    """

    call: CallSpelling
    before: str = ""
    after: str = ""
    between: str = ""
    section: tuple[str, str] = ("", "")
    several: bool = True
    begins: str = ""
    marker: str = ""
    also: tuple[str, ...] = ()
    dress: str | None = None

    @property
    def opener(self) -> str:  # noqa: D102
        return self.section[0] + self.before

    @property
    def markers(self) -> tuple[str, ...]:  # noqa: D102
        return () if self.begins else (self.marker or self.opener.rstrip(), *self.also)

    def written(self, calls: Sequence[WrittenCall]) -> str:  # noqa: D102
        if len(calls) > 1 and not self.several:
            raise FormatError(f"in this format a message makes one call, not {len(calls)}")
        each = (self.before + self.call.written(name, arguments) + self.after for name, arguments in calls)
        return self.section[0] + self.between.join(each) + self.section[1]

    def calls(self, lark: Lark, tools: Sequence[Tool], before: str, *, most: int) -> str:  # noqa: D102
        after, between = lark.text(self.after), self.between + self.before
        calls = f"{lark.either('call', (self.call.grammar(lark, tool, before) for tool in tools))} {after}"
        if most > 1 and self.several:
            more = lark.either("call", (self.call.grammar(lark, tool, between) for tool in tools))
            calls = f"{calls} ({more} {after}){{0,{most - 1}}}"
        return f"{calls} {lark.text(self.section[1])}"
