"""Requests to servers and events from them, independent of the protocol."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from .errors import bad_response, cut_off

if TYPE_CHECKING:
    from .._documents.published import PublishedBranch
    from .http import ServerConnection
    from .server_info import ServerInfo

TokenId: TypeAlias = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**53)]
Logprob: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
"""Log-probability of a token that was sampled or requested."""
Top: TypeAlias = list[tuple[int, float]]
"""Token ids and log-probabilities, the likeliest first."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A request for a generation after `tokens`.

    Attributes:
        sampling: fields of `kv.Sampling`.
        seed, stream: determine the random draws, with the position.
        output: constraint as `output_to_json` writes it; None for any text.
        ends: ids of the tokens that end the generation.
        n_generated: number of the last `tokens` that are of this generation already, for penalties.
        n_output: number of the last `tokens` that are of its output.
        read: whether the tokens are read as they come.
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
    n_generated: int
    n_output: int
    read: bool

    @property
    def depends_on_received(self) -> bool:
        """Whether the next tokens depend on where the generation began: under a constraint, or with penalties."""
        penalties = self.sampling.presence_penalty or self.sampling.frequency_penalty
        return self.output is not None or bool(penalties)

    def ended_with(self, received: Sequence[int]) -> str | None:
        """Finish reason of the generation after the tokens `n_generatedived`; None where more may come."""
        if received and received[-1] in self.ends:
            return "eos"
        return "length" if len(received) >= self.max_tokens else None

    def after(self, received: Sequence[int]) -> GenerateRequest:
        """Request for the rest of the generation after the tokens `n_generatedived`."""
        return replace(
            self,
            tokens=[*self.tokens, *received],
            max_tokens=self.max_tokens - len(received),
            n_generated=self.n_generated + len(received),
            n_output=0 if self.output is None else self.n_output + len(received),
        )


class TokensEvent(NamedTuple):
    """Generated tokens, a log-probability for each, and if requested the likeliest tokens of each position."""

    tokens: list[int]
    logprobs: list[float]
    tops: list[Top]


def made(
    host: str, tokens: list[int], logprobs: list[float] | None, tops: list[Top] | None, wanted: int
) -> TokensEvent:
    """Makes a TokensEvent. Raises RemoteError where tokens lack their log-probabilities."""
    tops = tops if wanted and tops is not None else []
    if len(logprobs or ()) != len(tokens) or (wanted and len(tops) != len(tokens)):
        raise bad_response(host, "with tokens that lack their log-probabilities")
    return TokensEvent(tokens, logprobs or [], tops)


class PrefillEvent(NamedTuple):
    """Number of prompt tokens, and of those that were in the server's cache; None where it does not say."""

    tokens: int
    cached: int | None


class EndEvent(NamedTuple):
    """End of a generation: "eos", "stop", "length" or "context_full", as far as the server knows."""

    reason: str


def ended(host: str, reason: str, known: frozenset[str]) -> EndEvent:
    """Makes an EndEvent. Raises RetryableError for an unknown reason: the server gave the generation up."""
    if reason not in known:
        raise cut_off(host, reason)
    return EndEvent(reason)


class LogitsEvent(NamedTuple):
    """Next-token logits, float32 [vocab]: up to a constant, and -inf for tokens that the server left out."""

    logits: npt.NDArray[np.float32]


class Scores(NamedTuple):
    """Log-probabilities of choices."""

    logprobs: list[float]


class Publication(NamedTuple):
    """A branch to publish, the id of this revision, and the ids of its earlier ones that this one `replaces`."""

    branch: PublishedBranch
    revision: str
    replaces: tuple[str, ...]


class Published(NamedTuple):
    """Confirmation that the server stores a publication."""

    revision: str


class Attached(NamedTuple):
    """Publication under a name: the branch and its revision."""

    branch: PublishedBranch
    revision: str


class RetryEvent(NamedTuple):
    """The request is retried: a server did not answer, or broke off."""


class RestartEvent(NamedTuple):
    """The generation begins again; its earlier tokens are void."""


class ErrorEvent(NamedTuple):
    """The request failed."""

    error: Exception


ServerEvent: TypeAlias = (
    TokensEvent
    | PrefillEvent
    | EndEvent
    | LogitsEvent
    | Scores
    | Published
    | Attached
    | RetryEvent
    | RestartEvent
    | ErrorEvent
)


class ServerProtocol(Protocol):
    """Requests of one server protocol. Methods raise RemoteError, RetryableError, or an httpx error.

    Attributes:
        can_resume: whether a request can continue a generation that `depends_on_made` (see `GenerateRequest`).
    """

    can_resume: bool

    def knows(self, facts: ServerInfo, vocab_size: int) -> None:
        """Sets the servers' model and its vocabulary size: called once, before all but `facts`."""

    async def facts(self, http: ServerConnection) -> ServerInfo:
        """Facts about the server's model."""

    def generate(
        self, http: ServerConnection, ask: GenerateRequest
    ) -> AsyncGenerator[TokensEvent | PrefillEvent | EndEvent]:
        """Yields the tokens as they come, and an EndEvent last."""

    async def prefill(self, http: ServerConnection, tokens: list[int]) -> PrefillEvent:
        """Has the server prefill these tokens for later requests."""

    async def logits(self, http: ServerConnection, tokens: list[int]) -> tuple[PrefillEvent, LogitsEvent]:
        """Next-token logits after these tokens."""

    async def select(
        self, http: ServerConnection, tokens: list[int], choices: list[list[int]]
    ) -> tuple[PrefillEvent, Scores]:
        """Log-probability of each choice as a continuation of these tokens."""


class PublishingProtocol(ServerProtocol, Protocol):
    """Protocol of a server that stores branches under names."""

    async def publish(self, http: ServerConnection, name: str, publication: Publication) -> Published:
        """Has the server store a branch under a name. Raises BranchExists for a name of another branch."""

    async def attach(self, http: ServerConnection, name: str) -> Attached:
        """Gets the branch under a name. Raises BranchNotFound."""
