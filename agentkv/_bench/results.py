"""Measured results of each strategy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
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
        drafts: number of tokens that came true of each verified draft, and of what a schema forced.
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
    drafts: tuple[int, ...]
    draft_seconds: float
    output: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """A strategy's results over all prompts and repetitions of one kind of work.

    Attributes:
        work: kind of work.
        name: name of the strategy.
        tokens: generated tokens of one repetition.
        tokens_per_forward: tokens per forward and branch in it, the acceptance length; 1 for plain, but for what a
            schema forces.
        forwards_per_token: forwards of the model per token of any branch.
        drafted, accepted: verified and accepted draft tokens.
        drafts: forwards of a branch that verified a draft, or tokens that a schema forced, or both in a row.
        accepted_by_depth: in how many of them at least 1, 2, 3 ... of these tokens came true.
        ms_per_token: wall milliseconds per token, from the median of each group's repetitions.
        draft_ms_per_token: of these, milliseconds of drafting.
        speedup: plain's ms_per_token divided by this one.
        same_output: whether every token was plain decoding's.
        difference: place of the first token that was not; empty if there is none.
    """

    work: str
    name: str
    tokens: int
    tokens_per_forward: float
    forwards_per_token: float
    drafted: int
    accepted: int
    drafts: int
    accepted_by_depth: tuple[int, ...]
    ms_per_token: float
    draft_ms_per_token: float
    speedup: float
    same_output: bool
    difference: str

    @classmethod
    def of(cls, work: str, name: str, samples: Sequence[Sample], plain: Sequence[Sample]) -> BenchResult:
        """Sums up a strategy's samples, relative to those of plain decoding."""
        tokens = sum(sample.tokens for sample in samples)
        per_repetition = sum(sample.tokens for sample in {sample.group: sample for sample in samples}.values())
        drafts = [accepted for sample in samples for accepted in sample.drafts]
        difference = _difference(samples, plain)
        return cls(
            work=work,
            name=name,
            tokens=per_repetition,
            tokens_per_forward=_ratio(tokens, sum(sample.rides for sample in samples)),
            forwards_per_token=_ratio(sum(sample.forwards for sample in samples), tokens),
            drafted=sum(sample.drafted for sample in samples),
            accepted=sum(sample.accepted for sample in samples),
            drafts=len(drafts),
            accepted_by_depth=tuple(
                sum(accepted >= depth for accepted in drafts) for depth in range(1, max(drafts, default=0) + 1)
            ),
            ms_per_token=1000 * _ratio(_seconds(samples), per_repetition),
            draft_ms_per_token=1000 * _ratio(sum(sample.draft_seconds for sample in samples), tokens),
            speedup=_ratio(_seconds(plain), _seconds(samples)),
            same_output=not difference,
            difference=difference,
        )

    @property
    def acceptance(self) -> float:
        """Share of verified draft tokens that were accepted, 0 to 1."""
        return _ratio(self.accepted, self.drafted)

    def accepted_at(self, depth: int) -> float:
        """Share of `drafts` of which at least `depth` tokens came true, 0 to 1."""
        return _ratio(self.accepted_by_depth[depth - 1], self.drafts) if depth <= len(self.accepted_by_depth) else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Fields as JSON values; floats are rounded to 4 digits."""
        values = {field: getattr(self, field) for field in self.__dataclass_fields__}
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in values.items()}


def _difference(samples: Sequence[Sample], plain: Sequence[Sample]) -> str:
    """Place of the first token that is not plain decoding's."""
    for sample, other in zip(samples, plain, strict=True):
        for number, (made, right) in enumerate(zip(sample.output, other.output, strict=True), 1):
            for place, (token, expected) in enumerate(zip_longest(made, right), 1):
                if token != expected:
                    return f"group {sample.group + 1}, prompt {number}, token {place}: {token}, not {expected}"
    return ""


def _seconds(samples: Sequence[Sample]) -> float:
    """Wall time of one repetition in seconds: sum of each group's median, which is robust against a busy machine."""
    walls: dict[int, list[float]] = defaultdict(list)
    for sample in samples:
        walls[sample.group].append(sample.seconds)
    return sum(median(times) for times in walls.values())


def _ratio(value: float, by: float) -> float:
    return value / by if by else 0.0
