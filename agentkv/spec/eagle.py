"""Speculation by a head on the model's own hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .._types.checks import A_FOLDER, checked_path
from ._built_in import DraftTarget, TreeDrafts

if TYPE_CHECKING:
    from agentkv_runtime.speculation import Drafter


@dataclass(frozen=True)
class Eagle(TreeDrafts):
    """Drafts with an EAGLE-3 head: one decoder layer over the model's own low, middle and high hidden states.

    The model must output its features (`agentkv export --features`); `agentkv export-draft` makes the head.

    Attributes:
        path: folder with the head's draft.pte, or that file; None for the model's own folder.
        width: nodes per branch that a level continues: the ones most likely to be reached.
        top_k: tokens tried after each of them.
        adaptive: adjust drafts to their measured cost and benefit; False always verifies as many nodes as fit.
    """

    path: str | Path | None = None

    def __post_init__(self) -> None:
        if self.path is not None:
            object.__setattr__(self, "path", checked_path(self.path, "path", A_FOLDER))
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
