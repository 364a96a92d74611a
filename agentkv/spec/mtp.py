"""Speculation by a model's own multi-token prediction layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._types.checks import checked_count
from ._built_in import DraftTarget, TreeDrafts

if TYPE_CHECKING:
    from agentkv_runtime.speculation import Drafter

_MOST_LEVELS = 16  # that the engine plans for


@dataclass(frozen=True)
class MTP(TreeDrafts):
    """Drafts with the multi-token prediction layer that a model was trained with (DeepSeek-V3, GLM-4.5, Qwen3-Next).

    `agentkv export` writes it beside the model where the checkpoint has one. The first level is what it was trained
    for; deeper ones run it again on its own output, which it guesses less well.

    Attributes:
        depth: tokens ahead at most; None for as many as pay.
        width: nodes per branch that a level continues: the ones most likely to be reached.
        top_k: tokens tried after each of them.
        adaptive: adjust drafts to their measured cost and benefit; False always verifies as many nodes as fit.
    """

    depth: int | None = None

    def __post_init__(self) -> None:
        if self.depth is not None:
            checked_count(self.depth, "depth", 1, _MOST_LEVELS)
        super().__post_init__()

    def _open(self, target: DraftTarget) -> Drafter:
        from agentkv_runtime.speculation import open_mtp

        return open_mtp(
            target.exported_for(self),
            capacity=target.capacity,
            kv_dtype=target.kv_dtype,
            width=self.width,
            top_k=self.top_k,
            depth=self.depth or 0,
        )
