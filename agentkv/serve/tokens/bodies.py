"""The bodies of `/v1/tokens`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ..._model.generate_options import GenerateOptions
from ..branches.bodies import Count, OutputBody, Stops, sampling_of
from ..http.body import Body

Tokens = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]


class Prompt(Body):
    """Token ids, at least one. `fingerprint` and `cache` name the model that they are of, and what its cache makes of
    keys and values; without them they are this one's."""

    tokens: Tokens
    fingerprint: str | None = None
    cache: str | None = None


class GenerateTokens(Prompt):
    """`POST /v1/tokens`: as the SDK's `generate`. `draws` is the stream that random numbers are from: the same tokens,
    seed and stream give the same tokens. `made` and `output_made`: so many of the last tokens are of this generation
    already, which goes on: penalties count those, and the output began with these."""

    max_tokens: Count = 256
    stop: Stops | None = None
    sampling: dict[str, Any] | None = None
    draws: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    output: OutputBody | None = None
    made: Annotated[int, Field(ge=0, lt=2**31)] = 0
    output_made: Annotated[int, Field(ge=0, lt=2**31)] = 0

    def options(self) -> GenerateOptions:
        """How it runs. Raises ApiError, InvalidInput."""
        return GenerateOptions.checked(
            max_tokens=self.max_tokens,
            stop=self.stop,
            sampling=None if self.sampling is None else sampling_of(self.sampling),
            top_logprobs=self.top_logprobs,
        )

    def constraint(self) -> Any:
        """What it must be. Raises ApiError, InvalidInput."""
        return str if self.output is None else self.output.asked()


class SelectTokens(Prompt):
    """`POST /v1/tokens/select`."""

    choices: Annotated[list[Tokens], Field(min_length=1, max_length=256)]
