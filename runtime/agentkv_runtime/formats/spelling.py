"""How a model spells its calls: written out, for what is made up, and as a grammar, for what it is about to write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.call_spelling import CallSpelling, Tool
from agentkv_runtime.formats.lark import Lark

__all__ = ["MOST_CALLS", "Calls", "NoCalls", "Spelling", "Thinking", "Wanted", "WrittenCall"]

_UNKNOWN = (
    "how this model spells calls is not known. Name the format that it was trained on (call_format, on the command "
    "line --call-format), or give one of your own"
)

MOST_CALLS = 16
"""Of one message, where nothing else is asked for: a model that may go on for ever does."""

WrittenCall = tuple[str, Mapping[str, Any]]
"""A tool's name, and the arguments."""
Thinking = tuple[str, str] | None
"""What is around the reasoning, for models that reason."""


@dataclass(frozen=True)
class Wanted:
    """What the next message may be."""

    tools: Sequence[Tool] = ()
    """That may be called."""
    text: bool = True
    """May it make no calls?"""
    output: Mapping[str, Any] | None = None
    """The JSON schema of a message that makes none; None for free text."""
    most_calls: int = MOST_CALLS
    """It may make so many."""
    thinking: Thinking = None
    """What is around the reasoning, for models that reason."""
    in_reasoning: bool = False
    """Has the prompt opened the reasoning?"""
    answers: bool = False
    """Is an answer written as a call, too?"""


class Spelling(ABC):
    """The calls of a message, and where in it they stand."""

    begins: str = ""
    """Where only a whole message can be calls: the pattern of how it begins."""
    several: bool = True
    """May a message make more than one call?"""
    dress: str | None = None
    """How the reader of any spelling calls this one; None where a template reads it."""

    @property
    def opener(self) -> str:
        """What begins the calls."""
        return ""

    @property
    def markers(self) -> tuple[str, ...]:
        """What is read as the beginning of calls, wherever in the text it is written; first that of `opener`."""
        return ()

    @abstractmethod
    def written(self, calls: Sequence[WrittenCall]) -> str:
        """Calls as the model writes them."""

    @abstractmethod
    def calls(self, lark: Lark, tools: Sequence[Tool], before: str, *, most: int) -> str:
        """After `before`, which is the end of `opener`, one call to `most` calls: an expression."""

    def write(self, content: str, calls: Sequence[WrittenCall], reasoning: str, thinking: Thinking) -> str:
        """A message. Raises FormatError for calls that it cannot have."""
        thought = f"{thinking[0]}\n{reasoning}\n{thinking[1]}\n\n" if reasoning and thinking else ""
        if not calls:
            return thought + content
        if content and self.begins:
            raise FormatError("in this format a message is text or calls, not both; leave one out")
        return thought + (content + "\n" if content else "") + self.written(calls)

    def message(self, lark: Lark, wanted: Wanted) -> str:
        """The message: an expression."""
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
        """What comes behind the reasoning, and the reasoning: an expression."""
        if not wanted.thinking:
            return body
        gap = lark.rule("GAP", r"/\n{0,2}/")
        thought = f"{lark.text_up_to(wanted.thinking[1])} {gap}"
        if not wanted.in_reasoning:
            thought = f"({lark.text(wanted.thinking[0])} {thought})?"
        return f"{thought} {body}"


class NoCalls(Spelling):
    """Of models that make none."""

    def written(self, calls: Sequence[WrittenCall]) -> str:  # noqa: D102
        raise FormatError(_UNKNOWN)

    def calls(self, lark: Lark, tools: Sequence[Tool], before: str, *, most: int) -> str:  # noqa: D102
        raise FormatError(_UNKNOWN)


@dataclass(frozen=True)
class Calls(Spelling):
    """Calls one after another, with markers around each and around all of them."""

    call: CallSpelling
    before: str = ""
    after: str = ""
    between: str = ""
    section: tuple[str, str] = ("", "")
    several: bool = True
    """May there be more than one?"""
    begins: str = ""
    """Without an opener: the pattern of how a message begins that is calls."""
    marker: str = ""
    """What is read as the beginning of calls, where that is less than all before the first."""
    also: tuple[str, ...] = ()
    """What else is."""
    dress: str | None = None
    """Where no template reads such calls: how the reader of any spelling calls this one, such as "json"."""

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
