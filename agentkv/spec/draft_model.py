"""Speculation by a second, smaller model."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .._inputs import checked_count
from ._built_in import MOST_NODES, BuiltIn, DraftTarget, check_adaptive
from ._folder import checked_path

if TYPE_CHECKING:
    from agentkv_runtime.speculation import Drafter


@dataclass(frozen=True)
class DraftModel(BuiltIn):
    """Guesses what a smaller model with the same tokenizer would say.

    A tree per branch; each level of it costs the smaller model one forward, for all branches together.

    Attributes:
        path: its model folder, as `agentkv export` writes it.
        width: nodes per branch that a level goes on from: those that are the most likely to be reached.
        top_k: tokens that are tried after each of them.
        adaptive: drafts follow what they have cost and brought; False always verifies all that there is room for.
    """

    path: str | Path
    _: KW_ONLY
    width: int = 8
    top_k: int = 8
    adaptive: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", checked_path(self.path))
        checked_count(self.width, "width", 1, MOST_NODES)
        checked_count(self.top_k, "top_k", 1, MOST_NODES)
        check_adaptive(self.adaptive)

    def _open(self, target: DraftTarget) -> Drafter:
        from agentkv_runtime.speculation import open_draft_model

        return open_draft_model(
            self.path,
            target.exported_for(self),
            capacity=target.capacity,
            kv_dtype=target.kv_dtype,
            width=self.width,
            top_k=self.top_k,
        )
