"""Speculation by a second, smaller model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .._types.checks import A_FOLDER, checked_path
from ..models._resolve import folder_called
from ._built_in import DraftTarget, TreeDrafts

if TYPE_CHECKING:
    from agentkv_runtime.speculation import Drafter


@dataclass(frozen=True)
class DraftModel(TreeDrafts):
    """Drafts the continuation that a smaller model with the same tokenizer would generate.

    Drafts a tree per branch; each level costs the smaller model one forward, for all branches together.

    Attributes:
        path: its model folder, as `agentkv export` writes it; or the name of a pulled model, or `nano`.
        width: nodes per branch that a level continues: the ones most likely to be reached.
        top_k: tokens tried after each of them.
        adaptive: adjust drafts to their measured cost and benefit; False always verifies as many nodes as fit.
    """

    path: str | Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", checked_path(self.path, "path", A_FOLDER))
        super().__post_init__()

    def _open(self, target: DraftTarget) -> Drafter:
        from agentkv_runtime.speculation import open_draft_model

        return open_draft_model(
            folder_called(Path(self.path)),
            target.exported_for(self),
            capacity=target.capacity,
            kv_dtype=target.kv_dtype,
            width=self.width,
            top_k=self.top_k,
        )
