"""What a server is asked, and what it tells, whatever it speaks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .connection import Connection
    from .facts import Facts

Top: TypeAlias = list[tuple[int, float]]
"""Token ids and log-probabilities, the likeliest first."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A generation behind these tokens.

    Attributes:
        sampling: fields as of `kv.Sampling`.
        seed, stream: what draws depend on, beside the position.
        output: as `told_output` writes it; None for any text.
        ends: the tokens that end it.
    """

    tokens: list[int]
    max_tokens: int
    sampling: Any
    seed: int
    stream: int
    stop: Sequence[str]
    top_logprobs: int
    output: dict[str, Any] | None
    ends: Sequence[int]

    def after(self, made: Sequence[int]) -> Ask:
        """The rest, once so many of its tokens are known."""
        return replace(self, tokens=[*self.tokens, *made], max_tokens=self.max_tokens - len(made))


class Made(NamedTuple):
    """Tokens that a generation made, one log-probability each, and the likeliest in each place if asked for."""

    tokens: list[int]
    logprobs: list[float]
    tops: list[Top]


class Fed(NamedTuple):
    """The server was given so many tokens in front, of which it had some in its cache; None where it does not say."""

    tokens: int
    cached: int | None


class Ended(NamedTuple):
    """A generation has ended: "eos", "stop", "length" or "context_full", as far as the server knows."""

    reason: str


class Row(NamedTuple):
    """Next-token logits, float32 [vocab]: up to a constant, and -inf where the server did not tell."""

    logits: npt.NDArray[np.float32]


class Scores(NamedTuple):
    """Log-probabilities of choices."""

    logprobs: list[float]


class Again(NamedTuple):
    """It is asked for again: a server did not answer, or broke off."""


class Failed(NamedTuple):
    """It came to nothing."""

    error: Exception


Heard: TypeAlias = Made | Fed | Ended | Row | Scores | Again | Failed


class Wire(Protocol):
    """What one kind of server speaks. Everything raises RemoteError and its like, or httpx's errors."""

    def knows(self, vocab_size: int) -> None:
        """The model has so many tokens; told once, before all but `facts`."""

    async def facts(self, http: Connection) -> Facts:
        """What it serves."""

    def generate(self, http: Connection, ask: Ask) -> AsyncGenerator[Made | Fed | Ended]:
        """The tokens as they come, and at last Ended."""

    async def prefill(self, http: Connection, tokens: list[int]) -> Fed:
        """Has the server compute these tokens, for what comes later."""

    async def logits(self, http: Connection, tokens: list[int]) -> tuple[Fed, Row]:
        """What may follow these tokens."""

    async def select(self, http: Connection, tokens: list[int], choices: list[list[int]]) -> tuple[Fed, Scores]:
        """How likely each choice is as a continuation."""
