"""What a store of another program holds, as far as models are concerned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["Found", "ModelStore", "Unusable"]


@dataclass(frozen=True)
class Found:
    """A model.

    Attributes:
        name: within its store.
        path: of its file, of the first of its parts, or of its folder.
        size: bytes of all of it.
    """

    name: str
    path: Path
    size: int


@dataclass(frozen=True)
class Unusable:
    """Something that should be a model, or hold some, and cannot be used.

    Attributes:
        name: within its store, or a path.
        why: one line.
    """

    name: str
    why: str


class ModelStore(Protocol):
    """Where another program keeps its models. Nothing in it is changed."""

    program: str
    """Whose it is, as people call it."""
    default_tag: str
    """What may be left out at the end of a name."""

    def models(self) -> Iterator[Found | Unusable]:
        """All that are there, in order; nothing for a store that is not. Raises nothing."""
