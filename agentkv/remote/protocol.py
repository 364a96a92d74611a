"""What a server is asked, and what it tells, whatever it speaks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from .errors import cut_off, garbled

if TYPE_CHECKING:
    from .._documents.published import PublishedBranch
    from .http import Connection
    from .server_info import Facts

TokenId: TypeAlias = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**53)]
Logprob: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
"""Of a token that was drawn, or asked for."""
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
        made: so many of the last tokens are of this generation already, as penalties count them.
        output_made: so many of them are of its output.
        read: does somebody read the tokens as they come?
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
    made: int
    output_made: int
    read: bool

    @property
    def depends_on_made(self) -> bool:
        """Does what comes depend on where it began, and not on its tokens alone?"""
        penalties = self.sampling.presence_penalty or self.sampling.frequency_penalty
        return self.output is not None or bool(penalties)

    def ended_with(self, made: Sequence[int]) -> str | None:
        """What ends it with these tokens, as far as they tell; None where more may come."""
        if made and made[-1] in self.ends:
            return "eos"
        return "length" if len(made) >= self.max_tokens else None

    def after(self, made: Sequence[int]) -> Ask:
        """The rest, once so many of its tokens are known."""
        return replace(
            self,
            tokens=[*self.tokens, *made],
            max_tokens=self.max_tokens - len(made),
            made=self.made + len(made),
            output_made=0 if self.output is None else self.output_made + len(made),
        )


class Made(NamedTuple):
    """Tokens that a generation made, one log-probability each, and the likeliest in each place if asked for."""

    tokens: list[int]
    logprobs: list[float]
    tops: list[Top]


def made(host: str, tokens: list[int], logprobs: list[float] | None, tops: list[Top] | None, wanted: int) -> Made:
    """Raises RemoteError where a token lacks what was asked for with it."""
    tops = tops if wanted and tops is not None else []
    if len(logprobs or ()) != len(tokens) or (wanted and len(tops) != len(tokens)):
        raise garbled(host, "with tokens that lack their log-probabilities")
    return Made(tokens, logprobs or [], tops)


class Fed(NamedTuple):
    """The server was given so many tokens in front, of which it had some in its cache; None where it does not say."""

    tokens: int
    cached: int | None


class Ended(NamedTuple):
    """A generation has ended: "eos", "stop", "length" or "context_full", as far as the server knows."""

    reason: str


def ended(host: str, reason: str, known: frozenset[str]) -> Ended:
    """Raises Busy for an end that is none of a generation's: a server that gave it up."""
    if reason not in known:
        raise cut_off(host, reason)
    return Ended(reason)


class Row(NamedTuple):
    """Next-token logits, float32 [vocab]: up to a constant, and -inf where the server did not tell."""

    logits: npt.NDArray[np.float32]


class Scores(NamedTuple):
    """Log-probabilities of choices."""

    logprobs: list[float]


class Publication(NamedTuple):
    """A branch to be kept under a name, as this revision of it; those that it `replaces` are the same branch's."""

    branch: PublishedBranch
    revision: str
    replaces: tuple[str, ...]


class Published(NamedTuple):
    """The server keeps it."""

    revision: str


class Attached(NamedTuple):
    """What the server keeps under a name."""

    branch: PublishedBranch
    revision: str


class Again(NamedTuple):
    """It is asked for again: a server did not answer, or broke off."""


class Anew(NamedTuple):
    """What it made is void: it begins again."""


class Failed(NamedTuple):
    """It came to nothing."""

    error: Exception


Heard: TypeAlias = Made | Fed | Ended | Row | Scores | Published | Attached | Again | Anew | Failed


class Wire(Protocol):
    """What one kind of server speaks. Everything raises RemoteError and its like, or httpx's errors.

    Attributes:
        goes_on: can a request go on with what another one began, where that counts (`Ask.depends_on_made`)?
    """

    goes_on: bool

    def knows(self, facts: Facts, vocab_size: int) -> None:
        """What the servers serve, and how many tokens it has; told once, before all but `facts`."""

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


class PublishingWire(Wire, Protocol):
    """What a server speaks that keeps branches under names."""

    async def publish(self, http: Connection, name: str, publication: Publication) -> Published:
        """Has the server keep a branch. Raises BranchExists."""

    async def attach(self, http: Connection, name: str) -> Attached:
        """What it keeps under a name. Raises BranchNotFound."""
