"""Speculation by a head on the model's own hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .._types.checks import checked_path
from ._built_in import DraftTarget, TreeDrafts

if TYPE_CHECKING:
    from agentkv_runtime.speculation import Drafter


@dataclass(frozen=True)
class Eagle(TreeDrafts):
    """Guesses with an EAGLE-3 head: one decoder layer over the model's own low, middle and high hidden states.

    The model must give out its features (`agentkv export --features`); `agentkv export-draft` makes the head.

    Attributes:
        path: folder that holds the head's draft.pte, or the file; None for the model's own folder.
        width: nodes per branch that a level goes on from: those that are the most likely to be reached.
        top_k: tokens that are tried after each of them.
        adaptive: drafts follow what they have cost and brought; False always verifies all that there is room for.
    """

    path: str | Path | None = None

    def __post_init__(self) -> None:
        if self.path is not None:
            object.__setattr__(self, "path", checked_path(self.path, "path"))
        super().__post_init__()

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
