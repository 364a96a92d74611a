"""Strategies that a benchmark compares: one row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentkv_runtime.folder.model_folder import is_model_folder, read_model_folder

from .. import spec
from .._model.drafters import Speculative


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """What is drafted for.

    Attributes:
        model: model folder or GGUF file.
        draft_model: folder of a smaller model that drafts, where there is one.
        adaptive: whether drafts follow what they have cost and brought.
    """

    model: Path
    draft_model: Path | None
    adaptive: bool


def _eagle(drafted: Drafted) -> Speculative | None:
    if not is_model_folder(drafted.model) or read_model_folder(drafted.model).draft_path is None:
        return None
    return spec.Eagle(adaptive=drafted.adaptive)


def _mtp(drafted: Drafted) -> Speculative | None:
    if not is_model_folder(drafted.model) or read_model_folder(drafted.model).mtp_path is None:
        return None
    return spec.MTP(adaptive=drafted.adaptive)


def _draft_model(drafted: Drafted) -> Speculative | None:
    return None if drafted.draft_model is None else spec.DraftModel(drafted.draft_model, adaptive=drafted.adaptive)


# By name; None where the model has none of them.
STRATEGIES: dict[str, Callable[[Drafted], Speculative | None]] = {
    "Suffix": lambda drafted: spec.Suffix(adaptive=drafted.adaptive),
    "PromptLookup": lambda drafted: spec.PromptLookup(adaptive=drafted.adaptive),
    "Eagle": _eagle,
    "MTP": _mtp,
    "DraftModel": _draft_model,
}


def strategies_for(drafted: Drafted) -> dict[str, Speculative]:
    """All strategies that there are for a model. Raises ModelFolderError."""
    made = {name: make(drafted) for name, make in STRATEGIES.items()}
    return {name: strategy for name, strategy in made.items() if strategy is not None}
