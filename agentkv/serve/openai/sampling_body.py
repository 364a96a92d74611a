"""Sampling parameters of OpenAI's requests."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..._types.sampling import Sampling
from ..http.body import MOST_STOPS, Body
from ..http.errors import ApiError

Stop = str | Annotated[list[str], Field(max_length=MOST_STOPS)] | None


class SamplingBody(Body):
    """Sampling parameters of all requests that generate text. The defaults are the protocol's: temperature 1.

    `top_k`, `min_p` and `repetition_penalty` are extensions that other servers have as well.
    """

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None

    def sampling(self, vocab_size: int) -> Sampling:
        """Sampling parameters for the SDK. Raises ApiError for a bias whose key is no token id."""
        given = self.model_dump(include=set(SamplingBody.model_fields) - {"logit_bias", "seed"}, exclude_none=True)
        bias = {_token(name, vocab_size): value for name, value in (self.logit_bias or {}).items()}
        seed = None if self.seed is None else self.seed % 2**63
        return Sampling(**{"temperature": 1.0, **given}, logit_bias=bias or None, seed=seed)


def stops_of(stop: Stop) -> list[str]:
    """Stop strings as a list. Raises ApiError for an empty one."""
    stops = [stop] if isinstance(stop, str) else stop or []
    if "" in stops:
        raise ApiError("invalid", "a stop string is empty", param="stop")
    return stops


def _token(name: str, vocab_size: int) -> int:
    if name.isascii() and name.isdigit() and int(name[:12]) < vocab_size and len(name) < 12:
        return int(name)
    raise ApiError(
        "invalid", f"logit_bias has {name!r}, which is no token; ids are below {vocab_size}", param="logit_bias"
    )
