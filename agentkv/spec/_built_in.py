"""The base of the strategies that come with agentkv."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .._errors import InvalidInput, ModelError
from .._shown import shown

if TYPE_CHECKING:
    from agentkv_runtime.folder.model_folder import ModelFolder
    from agentkv_runtime.speculation import Drafter

MOST_NODES = 64  # of one draft


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTarget:
    """The open model that is drafted for."""

    path: Path
    folder: ModelFolder | None  # None where torch runs a Hugging Face folder
    vocab_size: int
    capacity: int
    kv_dtype: str

    def exported_for(self, strategy: object) -> ModelFolder:
        """The model folder that drafts of another program are checked against. Raises ModelError."""
        if self.folder is None:
            raise ModelError(
                f"{type(strategy).__name__} drafts for exported models, and torch runs {self.path} as it is; export it "
                "with `agentkv export`, or draft with PromptLookup"
            )
        return self.folder


class BuiltIn(ABC):
    """A strategy as settings, from which each Context opens a drafter of its own."""

    @abstractmethod
    def _open(self, target: DraftTarget) -> Drafter:
        """The drafter, made on the thread of the step loop."""


def check_adaptive(adaptive: object) -> None:
    """Raises InvalidInput for anything but a bool."""
    if not isinstance(adaptive, bool):
        raise InvalidInput(f"adaptive is {shown(adaptive)}, but it must be True or False")
