"""Bodies of `/v1/tokens`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ..._model.generate_options import GenerateOptions
from ..branches.bodies import Count, OutputBody, Stops, sampling_of
from ..http.body import Body

Tokens = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]


class Prompt(Body):
    """Token ids, at least one. `fingerprint` and `cache` identify the model and the cache configuration that they
    belong to; None means this server's. `model` is one of several that it has."""

    tokens: Tokens
    model: str | None = None
    fingerprint: str | None = None
    cache: str | None = None


class GenerateTokens(Prompt):
    """`POST /v1/tokens`: options of the SDK's `generate`. `draws` is the stream of random numbers: equal tokens, seed
    and stream give equal output. With `made` and `output_made` the request continues a generation: the last `made`
    tokens count for penalties, and the last `output_made` of them are the beginning of the output."""

    max_tokens: Count = 256
    stop: Stops | None = None
    sampling: dict[str, Any] | None = None
    draws: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    output: OutputBody | None = None
    made: Annotated[int, Field(ge=0, lt=2**31)] = 0
    output_made: Annotated[int, Field(ge=0, lt=2**31)] = 0

    def options(self) -> GenerateOptions:
        """Options of the generation. Raises ApiError and InvalidInput."""
        return GenerateOptions.checked(
            max_tokens=self.max_tokens,
            stop=self.stop,
            sampling=None if self.sampling is None else sampling_of(self.sampling),
            top_logprobs=self.top_logprobs,
        )

    def constraint(self) -> Any:
        """Constraint of the output; `str` for free text. Raises ApiError and InvalidInput."""
        return str if self.output is None else self.output.asked()


class SelectTokens(Prompt):
    """`POST /v1/tokens/select`."""

    choices: Annotated[list[Tokens], Field(min_length=1, max_length=256)]
