"""Settings shared by the strategies that draft with a program."""

from __future__ import annotations

from dataclasses import dataclass

from .._inputs import checked_count
from ._built_in import MOST_NODES, BuiltIn, check_adaptive


@dataclass(frozen=True, kw_only=True)
class TreeDrafts(BuiltIn):
    """How trees are grown: `width` nodes per level, `top_k` children each."""

    width: int = 8
    top_k: int = 8
    adaptive: bool = True

    def __post_init__(self) -> None:
        checked_count(self.width, "width", 1, MOST_NODES)
        checked_count(self.top_k, "top_k", 1, MOST_NODES)
        check_adaptive(self.adaptive)
