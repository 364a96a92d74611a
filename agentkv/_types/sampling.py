"""Sampling parameters: how the next token is chosen."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import InvalidInput
from .show import preview

if TYPE_CHECKING:
    from agentkv_runtime import engine

_SEED_BITS = 63
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class Sampling(BaseModel):
    """Sampling parameters; frozen.

    Applied in this order: repetition, presence and frequency penalties, logit bias, temperature, top_k, top_p, min_p,
    draw. Log-probabilities that are reported are the model's own, before all of these.

    Attributes:
        temperature: 0 takes the most likely token (greedy); above 0 logits are divided by it before the draw.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the fewest tokens whose probabilities sum to at least this; 1 keeps all.
        min_p: keep tokens at least this fraction as likely as the most likely one; 0 keeps all.
        repetition_penalty: above 1, tokens that are already in the branch become less likely; 1 leaves them. It divides
            positive logits and multiplies negative ones (Keskar et al. 2019), as transformers does.
        presence_penalty: from -2 to 2, subtracted from the logits of the tokens that this generation has made so far.
        frequency_penalty: from -2 to 2, subtracted as well, once for each time that it has made the token. Both are
            OpenAI's: they count generated tokens, not the prompt, and each call of `generate` starts at zero.
        logit_bias: token id to a number from -100 to 100 that is added to its logit: 1 makes a token e times as likely
            beside the others, -100 all but rules it out.
        seed: 0 <= seed < 2**63. None draws one, reported as `Generation.seed`. The draw at a position depends on the
            seed, the branch and the position, so a replay repeats it and siblings differ. Which branch it is follows
            from the order in which branches were made and forked; `adopt` takes over the other's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: Mapping[TokenId, Bias] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**_SEED_BITS)] | None = None

    if not TYPE_CHECKING:  # type checkers and `help` take the parameters from the fields

        def __init__(self, **options: object) -> None:
            try:
                super().__init__(**options)
            except ValidationError as error:
                refused = "; ".join(f"{e['loc'][0]}={preview(e['input'])}: {e['msg']}" for e in error.errors())
                raise InvalidInput(f"Sampling refused {refused}") from None

    def __hash__(self) -> int:
        return hash(tuple(frozenset(value.items()) if isinstance(value, Mapping) else value for _, value in self))

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    def drawn_seed(self) -> int | None:
        """Returns the seed of one generation: the given one, else a fresh one if sampling is random, else None."""
        if self.seed is not None or self.greedy:
            return self.seed
        return secrets.randbits(_SEED_BITS)


def native_sampling(sampling: Sampling) -> engine.Sampling:
    """Converts to the native type, without the seed: that goes with a generation's options, since it may be drawn."""
    from agentkv_runtime import engine

    return engine.Sampling(**sampling.model_dump(exclude={"seed"}, exclude_none=True))


def native_options(*, sampling: Sampling, **options: Any) -> engine.GenerateOptions:
    """Builds the native engine's options of one generation."""
    from agentkv_runtime import engine

    return engine.GenerateOptions(sampling=native_sampling(sampling), **options)
