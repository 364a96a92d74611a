"""Speculation by a second, smaller model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from .._types.checks import A_FOLDER, checked_path
from .._types.errors import InvalidInput, ModelError
from .._types.info import ModelInfo
from ..models._resolve import folder_called
from ._built_in import DraftTarget, TreeDrafts

if TYPE_CHECKING:
    from agentkv_runtime.speculation import Drafter


class HasModelInfo(Protocol):
    """A Context, of which a draft needs no more than this."""

    @property
    def model_info(self) -> ModelInfo:
        """Facts of the model."""


@dataclass(frozen=True)
class DraftModel(TreeDrafts):
    """Drafts the continuation that a smaller model with the same tokenizer would generate.

    Drafts a tree per branch; each level costs the smaller model one forward, for all branches together.

    Attributes:
        path: its model folder, as `agentkv export` writes it; or the name of a pulled model, or `nano`; or an open
            Context on it. All of them share the weights of one file; each has cells of its own.
        width: nodes per branch that a level continues: the ones most likely to be reached.
        top_k: tokens tried after each of them.
        adaptive: adjust drafts to their measured cost and benefit; False always verifies as many nodes as fit.
    """

    path: str | Path | HasModelInfo

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", _path_of(self.path))
        super().__post_init__()

    @property
    def folder(self) -> Path:
        """The path or name of its model folder."""
        return cast(Path, self.path)  # since it was made

    def _open(self, target: DraftTarget) -> Drafter:
        from agentkv_runtime.sources.source import is_gguf
        from agentkv_runtime.speculation import open_draft_model

        folder = folder_called(self.folder)
        if is_gguf(folder):
            raise ModelError(
                f"{folder}: a draft model is a model folder. Open the file and draft with that Context: "
                "kv.spec.DraftModel(ctx)"
            )
        return open_draft_model(
            folder,
            target.exported_for(self),
            capacity=target.capacity,
            kv_dtype=target.kv_dtype,
            width=self.width,
            top_k=self.top_k,
        )


def _path_of(model: str | Path | HasModelInfo) -> Path:
    """The path or name of a model folder, or of that of an open Context. Raises InvalidInput."""
    info = getattr(model, "model_info", None)
    if not isinstance(info, ModelInfo):
        return checked_path(model, "path", f"{A_FOLDER}, or an open Context on it")
    if not info.speculates:
        raise InvalidInput(f"{info.path} is a model of a server, and a draft model runs here; give a model folder")
    return Path(info.path)
