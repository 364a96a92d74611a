"""What a server tells, of the shape that it must have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from .._extending import Extended
from .._generation import FinishReason, Token, TopLogprob, Usage
from .._message import Message

Id = Annotated[str, Field(pattern="^[A-Za-z0-9_]{1,64}$")]  # it becomes a part of paths
Count = Annotated[int, Field(ge=0, lt=2**63)]


@dataclass(frozen=True)
class Outline:
    """A branch without its tokens."""

    id: Id
    number: Count
    length: Count
    reused: Count
    mark: Annotated[str, Field(pattern="^[0-9]{1,20}:[0-9]{1,20}$")]

    def as_fork_of(self, other: Whole) -> Whole:
        """All of it, where it holds what the other one does."""
        return Whole(**vars(self), tokens=other.tokens, text=other.text, messages=other.messages)


@dataclass(frozen=True)
class Whole(Outline):
    """All of a branch."""

    tokens: list[int]
    text: str
    messages: list[Message]


@dataclass(frozen=True)
class ToldExtended(Whole):
    """After `extend`."""

    extended: Extended


@dataclass(frozen=True)
class ToldForks(Whole):
    """After `fork`."""

    forks: list[Outline]


@dataclass(frozen=True)
class ToldScores:
    """Of choices."""

    text: str
    index: Count
    logprobs: list[float]


@dataclass(frozen=True)
class ToldChoice(Whole):
    """After `select`."""

    choice: ToldScores


@dataclass(frozen=True)
class ToldGeneration:
    """A generation; `output_error` is why it has no output."""

    text: str
    tokens: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    usage: Usage
    seed: int | None
    top_logprobs: list[tuple[TopLogprob, ...]]
    output: Any
    output_error: dict[str, Any] | None


@dataclass(frozen=True)
class Generated(Whole):
    """After `generate`, and the last event of a stream."""

    generation: ToldGeneration


@dataclass(frozen=True)
class Begun:
    """The first event of a stream."""

    length: Count


@dataclass(frozen=True)
class Failure:
    """Of a request, or of a stream that has begun."""

    error: Any


Event = Begun | Token | Generated

WHOLE = TypeAdapter(Whole)
EXTENDED = TypeAdapter(ToldExtended)
FORKS = TypeAdapter(ToldForks)
CHOICE = TypeAdapter(ToldChoice)
GENERATED = TypeAdapter(Generated)
FAILURE = TypeAdapter(Failure)
ANYTHING = TypeAdapter[Any](Any)
EVENTS: Mapping[str, TypeAdapter[Any]] = {
    "begin": TypeAdapter(Begun),
    "token": TypeAdapter(Token),
    "generation": GENERATED,
}
