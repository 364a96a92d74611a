"""Results of parsing a model's output: the message, and its deltas while it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "CUT_OFF",
    "ArgumentsDelta",
    "CallClosed",
    "CallOpened",
    "Delta",
    "ParsedCall",
    "ParsedMessage",
    "ReasoningDelta",
    "TextDelta",
]

CUT_OFF = "the call is cut off"
"""`ParsedCall.error` of a call that the end of the message cuts off."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call of a tool, as the model wrote it."""

    name: str
    """Name of the tool; empty if the output ended or became invalid before it."""
    arguments: dict[str, Any] | None
    """Arguments; None for a call with an `error`."""
    raw: str = ""
    """Text between the call's markers."""
    error: str | None = None
    """Reason for which the call must not run: cut off, or invalid in the format."""
    rescued: str | None = None
    """Spelling of the call if it is not the format's own: "json", "python", "tag" or a format's name."""


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """An assistant's message."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ParsedCall, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields that a response template fills, such as `role`."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A further piece of the content."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A further piece of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallOpened:
    """A call whose name is now known. `index` counts the message's calls from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """A further piece of a call's arguments, as the model writes them."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallClosed:
    """A call that is complete, or can no longer become so (`call.error`)."""

    index: int
    call: ParsedCall


Delta = TextDelta | ReasoningDelta | CallOpened | ArgumentsDelta | CallClosed
