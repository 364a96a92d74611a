"""Models in the stores of other programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["Found", "ModelStore", "Unusable"]


@dataclass(frozen=True)
class Found:
    """A model in a store.

    Attributes:
        name: name within the store.
        path: its file, the first of its parts, or its folder.
        size: bytes of all its files.
    """

    name: str
    path: Path
    size: int


@dataclass(frozen=True)
class Unusable:
    """A file or folder that should be or contain a model, and cannot be used.

    Attributes:
        name: name within the store, or a path.
        why: the reason in one line.
    """

    name: str
    why: str


class ModelStore(Protocol):
    """The models of another program, read-only."""

    program: str
    """Name of the program, for people."""
    default_tag: str
    """Tag that may be left out at the end of a name."""

    def models(self) -> Iterator[Found | Unusable]:
        """Yields all models in order; none for a store that does not exist. Raises nothing."""
