"""Speculation from earlier text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._types.checks import checked_count
from .._types.errors import InvalidInput
from ._built_in import MOST_NODES, BuiltIn, DraftTarget, check_adaptive

if TYPE_CHECKING:
    from agentkv_runtime.speculation import Drafter

_LONGEST = 1024


@dataclass(frozen=True, kw_only=True)
class PromptLookup(BuiltIn):
    """Drafts what followed the same text earlier: in the branch's own history, or in any other branch of the Context.

    Needs no second model and costs no forward. Pays off where output repeats input: tool calls, quotes, edits, code.

    Attributes:
        max_ngram: maximum number of tokens at a branch's end to compare; the longest match is followed.
        min_ngram: minimum number of tokens that must match.
        max_nodes: maximum nodes of a draft, 1 to 64.
        width: maximum number of different continuations in a draft.
        adaptive: adjust drafts to their measured cost and benefit; False always verifies as many nodes as fit.
    """

    max_ngram: int = 16
    min_ngram: int = 2
    max_nodes: int = 16
    width: int = 2
    adaptive: bool = True

    def __post_init__(self) -> None:
        checked_count(self.min_ngram, "min_ngram", 1, _LONGEST)
        checked_count(self.max_ngram, "max_ngram", 1, _LONGEST)
        if self.max_ngram < self.min_ngram:
            raise InvalidInput(f"max_ngram is {self.max_ngram}, but it must be at least min_ngram, {self.min_ngram}")
        checked_count(self.max_nodes, "max_nodes", 1, MOST_NODES)
        checked_count(self.width, "width", 1, MOST_NODES)
        check_adaptive(self.adaptive)

    def _open(self, target: DraftTarget) -> Drafter:
        from agentkv_runtime import speculation

        return speculation.PromptLookup(
            max_ngram=self.max_ngram, min_ngram=self.min_ngram, max_nodes=self.max_nodes, width=self.width
        )
