"""Options of one generation, as `Branch.generate`, agents and servers take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from .._types.checks import checked_count, checked_sampling, checked_stop
from .._types.errors import InvalidInput
from .._types.sampling import Sampling
from .._types.show import shown
from .drafters import INHERIT, Inherit, Speculative, checked_strategy

MOST_TOKENS = 2**31 - 1
MOST_TOP_LOGPROBS = 20

Thinking: TypeAlias = bool | int | None
"""False: none of it. True: as much as the model likes. A number: at most so many tokens. None: as template and model
have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """How one generation runs, whatever its output must be.

    Attributes:
        max_tokens: at most this many.
        stop: strings that end it.
        sampling: how tokens are drawn.
        seed: of the draws; None where nothing is drawn.
        speculative: a strategy, None for none, INHERIT for the Context's.
        top_logprobs: likely tokens that are reported for each place.
        thinking: tokens of the message that may be reasoning.
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
        """What a caller gave. Draws the seed where one is needed. Raises InvalidInput for anything out of range."""
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
        """The same with other draws. Greedy would say the same, so it draws by the model's own distribution.

        Which draws follows from the attempt: what repeats the first generation repeats the others as well.
        """
        sampling = self.sampling.model_copy(update={"temperature": 1.0}) if self.sampling.greedy else self.sampling
        return replace(self, sampling=sampling, seed=((self.seed or 0) + attempt) % 2**63)


def checked_thinking(thinking: object) -> Thinking:
    """Raises InvalidInput for what is no budget."""
    if thinking is None or isinstance(thinking, bool):
        return thinking
    if not isinstance(thinking, int):
        raise InvalidInput(f"thinking is {shown(thinking)}, but it must be True, False, None or a number of tokens")
    return checked_count(thinking, "thinking", 0)
