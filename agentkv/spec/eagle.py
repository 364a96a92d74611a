"""Speculation by a head on the model's own hidden states."""

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
class Eagle(BuiltIn):
    """Guesses with an EAGLE-3 head: one decoder layer over the model's own low, middle and high hidden states.

    The model must give out its features (`agentkv export --features`); `agentkv export-draft` makes the head.

    Attributes:
        path: folder that holds the head's draft.pte, or the file; None for the model's own folder.
        width: nodes per branch that a level goes on from: those that are the most likely to be reached.
        top_k: tokens that are tried after each of them.
        adaptive: drafts follow what they have cost and brought; False always verifies all that there is room for.
    """

    path: str | Path | None = None
    _: KW_ONLY
    width: int = 8
    top_k: int = 8
    adaptive: bool = True

    def __post_init__(self) -> None:
        if self.path is not None:
            object.__setattr__(self, "path", checked_path(self.path))
        checked_count(self.width, "width", 1, MOST_NODES)
        checked_count(self.top_k, "top_k", 1, MOST_NODES)
        check_adaptive(self.adaptive)

    def _open(self, target: DraftTarget) -> Drafter:
        from agentkv_runtime.speculation import open_eagle

        return open_eagle(
            self.path,
            target.exported_for(self),
            capacity=target.capacity,
            kv_dtype=target.kv_dtype,
            width=self.width,
            top_k=self.top_k,
        )
