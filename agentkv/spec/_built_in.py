"""Bases of the built-in strategies, and the settings that those with a draft program share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .._types.checks import checked_count
from .._types.errors import InvalidInput, ModelError
from .._types.show import preview

if TYPE_CHECKING:
    from agentkv_runtime.folder.model_folder import ModelFolder
    from agentkv_runtime.speculation import Drafter


MOST_NODES = 64  # per draft


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTarget:
    """The open model that drafts are for."""

    path: Path
    folder: ModelFolder | None  # None where torch runs a Hugging Face folder
    vocab_size: int
    token_bytes: Sequence[bytes]  # [vocab_size]
    fingerprint: Callable[[], str]  # of the program
    capacity: int
    kv_dtype: str

    def exported_for(self, strategy: object) -> ModelFolder:
        """The model folder that drafts of another program are checked against. Raises ModelError."""
        if self.folder is None:
            raise ModelError(
                f"{type(strategy).__name__} drafts for exported models, and torch runs {self.path} as it is; export it "
                "with `agentkv export`, or draft with Suffix"
            )
        return self.folder


class BuiltIn(ABC):
    """A strategy given by settings, from which each Context opens its own drafter."""

    @abstractmethod
    def _open(self, target: DraftTarget) -> Drafter:
        """Makes the drafter, on the step loop's thread."""

    def _close(self, drafter: Drafter, target: DraftTarget) -> None:  # noqa: B027 - most have nothing to keep
        """Keeps what a drafter of `_open` leaves to later Contexts, on the same thread, before it is freed."""


def close_drafter(drafter: Drafter, strategy: object, target: DraftTarget) -> None:
    """Keeps what a drafter leaves to later Contexts, before it is freed."""
    if isinstance(strategy, BuiltIn):
        strategy._close(drafter, target)


def check_adaptive(adaptive: object) -> None:
    """Raises InvalidInput unless `adaptive` is a bool."""
    if not isinstance(adaptive, bool):
        raise InvalidInput(f"adaptive is {preview(adaptive)}, but it must be True or False")


@dataclass(frozen=True, kw_only=True)
class TreeDrafts(BuiltIn):
    """Settings of draft trees: `width` nodes per level, `top_k` children each."""

    width: int = 8
    top_k: int = 8
    adaptive: bool = True

    def __post_init__(self) -> None:
        checked_count(self.width, "width", 1, MOST_NODES)
        checked_count(self.top_k, "top_k", 1, MOST_NODES)
        check_adaptive(self.adaptive)
