"""Options of one generation, as `Branch.generate`, agents and servers take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from .._types.checks import checked_count, checked_sampling, checked_stop
from .._types.errors import InvalidInput
from .._types.sampling import Sampling
from .._types.show import preview
from .drafters import INHERIT, Inherit, Speculative, checked_strategy

MOST_TOKENS = 2**31 - 1
MOST_TOP_LOGPROBS = 20

Thinking: TypeAlias = bool | int | None
"""False: no reasoning. True: unlimited. A number: maximum number of tokens. None: the default of template and model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """Options of one generation, other than its output.

    Attributes:
        max_tokens: maximum number of tokens.
        stop: strings that end it.
        sampling: sampling parameters.
        seed: seed of sampling; None if greedy and none was given.
        speculative: a strategy, None for none, INHERIT for the Context's.
        top_logprobs: number of most likely tokens to report at each position.
        thinking: budget of reasoning tokens in the message.
    """

    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    seed: int | None = None
    speculative: Speculative | Inherit | None = INHERIT
    top_logprobs: int = 0
    thinking: Thinking = None

    @classmethod
    def checked(
        cls,
        *,
        max_tokens: int = 256,
        stop: str | Sequence[str] | None = None,
        sampling: Sampling | None = None,
        speculative: Speculative | Inherit | None = INHERIT,
        top_logprobs: int = 0,
        thinking: Thinking = None,
    ) -> GenerateOptions:
        """Validates a caller's options; draws a seed if one is needed. Raises InvalidInput."""
        strategy = speculative if isinstance(speculative, Inherit) else checked_strategy(speculative)
        drawn = checked_sampling(sampling)
        return cls(
            max_tokens=checked_count(max_tokens, "max_tokens", 1, MOST_TOKENS),
            stop=tuple(checked_stop(stop)),
            sampling=drawn,
            seed=drawn.drawn_seed(),
            speculative=strategy,
            top_logprobs=checked_count(top_logprobs, "top_logprobs", 0, MOST_TOP_LOGPROBS),
            thinking=checked_thinking(thinking),
        )

    def for_attempt(self, attempt: int) -> GenerateOptions:
        """The options of a retry, with another seed. Greedy would repeat itself, so it samples at temperature 1.

        The seed is derived from the attempt: a replay of the first generation replays the retries as well.
        """
        sampling = self.sampling.model_copy(update={"temperature": 1.0}) if self.sampling.greedy else self.sampling
        return replace(self, sampling=sampling, seed=((self.seed or 0) + attempt) % 2**63)


def checked_thinking(thinking: object) -> Thinking:
    """Returns a valid `thinking` argument. Raises InvalidInput."""
    if thinking is None or isinstance(thinking, bool):
        return thinking
    if not isinstance(thinking, int):
        raise InvalidInput(f"thinking is {preview(thinking)}, but it must be True, False, None or a number of tokens")
    return checked_count(thinking, "thinking", 0)
