"""What a parser makes of a model's output: a message, and on the way there its deltas."""

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
"""The error of a call that the message ends within."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call of a tool, as the model wrote it."""

    name: str
    """Empty where the output ended, or went wrong, before it."""
    arguments: dict[str, Any] | None
    """None where `error` says why."""
    raw: str = ""
    """The text between the call's markers."""
    error: str | None = None
    """Why it must not run: cut off, or nothing that the format allows."""
    rescued: str | None = None
    """The spelling it was written in, where that is not the format's: "json", "python", "tag" or a format's name."""


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
    """More of the content."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallOpened:
    """A call whose name is known. Calls are counted from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of a call's arguments, as the model writes them."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallClosed:
    """A call that is complete, or can no longer become so (`call.error`)."""

    index: int
    call: ParsedCall


Delta = TextDelta | ReasoningDelta | CallOpened | ArgumentsDelta | CallClosed
