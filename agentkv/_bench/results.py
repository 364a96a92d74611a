"""Measured results of each strategy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured run over one group of prompts.

    Attributes:
        group: number of the group.
        seconds: wall time of generating in seconds, without the prompts.
        tokens: generated tokens, without the first of each branch, which follows from the prompt's own forward.
        forwards: forwards of the model.
        rides: branches in these forwards, summed.
        drafted, accepted: verified and accepted draft tokens.
        draft_seconds: seconds spent drafting.
        output: the tokens of each branch.
    """

    group: int
    seconds: float
    tokens: int
    forwards: int
    rides: int
    drafted: int
    accepted: int
    draft_seconds: float
    output: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """A strategy's results over all prompts and repetitions.

    Attributes:
        name: name of the strategy.
        tokens: generated tokens of one repetition.
        tokens_per_forward: tokens per forward and branch in it, the acceptance length; 1 for plain.
        forwards_per_token: forwards of the model per token of any branch.
        drafted, accepted: verified and accepted draft tokens.
        ms_per_token: wall milliseconds per token, from the median of each group's repetitions.
        draft_ms_per_token: of these, milliseconds of drafting.
        speedup: plain's ms_per_token divided by this one.
        same_output: whether every token was plain decoding's.
    """

    name: str
    tokens: int
    tokens_per_forward: float
    forwards_per_token: float
    drafted: int
    accepted: int
    ms_per_token: float
    draft_ms_per_token: float
    speedup: float
    same_output: bool

    @classmethod
    def of(cls, name: str, samples: Sequence[Sample], plain: Sequence[Sample]) -> BenchResult:
        """Sums up a strategy's samples, relative to those of plain decoding."""
        tokens = sum(sample.tokens for sample in samples)
        per_repetition = sum(sample.tokens for sample in {sample.group: sample for sample in samples}.values())
        return cls(
            name=name,
            tokens=per_repetition,
            tokens_per_forward=_ratio(tokens, sum(sample.rides for sample in samples)),
            forwards_per_token=_ratio(sum(sample.forwards for sample in samples), tokens),
            drafted=sum(sample.drafted for sample in samples),
            accepted=sum(sample.accepted for sample in samples),
            ms_per_token=1000 * _ratio(_seconds(samples), per_repetition),
            draft_ms_per_token=1000 * _ratio(sum(sample.draft_seconds for sample in samples), tokens),
            speedup=_ratio(_seconds(plain), _seconds(samples)),
            same_output=[sample.output for sample in samples] == [sample.output for sample in plain],
        )

    @property
    def acceptance(self) -> float:
        """Share of verified draft tokens that were accepted, 0 to 1."""
        return _ratio(self.accepted, self.drafted)

    def as_dict(self) -> dict[str, Any]:
        """Fields as JSON values; floats are rounded to 4 digits."""
        values = {field: getattr(self, field) for field in self.__dataclass_fields__}
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in values.items()}


def _seconds(samples: Sequence[Sample]) -> float:
    """Wall time of one repetition in seconds: sum of each group's median, which is robust against a busy machine."""
    walls: dict[int, list[float]] = defaultdict(list)
    for sample in samples:
        walls[sample.group].append(sample.seconds)
    return sum(median(times) for times in walls.values())


def _ratio(value: float, by: float) -> float:
    return value / by if by else 0.0
