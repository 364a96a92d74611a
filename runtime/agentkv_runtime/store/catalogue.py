"""Short names of models, from the list `catalogue.toml` that is part of the package."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from agentkv_runtime.store.hub import Name

__all__ = ["POSITIONS", "ListedModel", "catalogue", "listed", "nearest"]

POSITIONS = 8192
"""Length of the history that `memory` counts, in positions."""
_KEYS_AND_VALUES = 2
_FP16 = 2  # bytes
_LEAST = 3  # letters of a name that others may contain
_MOST_NEAR = 4


@dataclass(frozen=True)
class ListedModel:
    """A model with a short name.

    Attributes:
        name: `family:size`, or `family:size-quantisation`.
        source: its file on the hub.
        licence: as its model card has it.
        size: bytes of the file.
        cells: numbers of layers, of K/V heads, and of values of a head.
        tools: whether it calls tools: "yes", "no" or "not measured".
        usual: whether the family's name alone stands for it.
    """

    name: str
    source: Name
    licence: str
    size: int
    cells: tuple[int, int, int]
    tools: str
    usual: bool

    @property
    def family(self) -> str:
        """Name without the size."""
        return self.name.partition(":")[0]

    @property
    def memory(self) -> int:
        """Bytes for the file and `POSITIONS` cells of fp16, as if every layer held them all."""
        layers, heads, values = self.cells
        return self.size + POSITIONS * layers * _KEYS_AND_VALUES * heads * values * _FP16


@cache
def catalogue() -> tuple[ListedModel, ...]:
    """All listed models, in the order of the list."""
    text = (Path(__file__).parent / "catalogue.toml").read_text(encoding="utf-8")
    return tuple(
        ListedModel(
            name=entry["name"],
            source=Name(entry["repo"], entry["file"]),
            licence=entry["licence"],
            size=entry["bytes"],
            cells=tuple(entry["cells"]),
            tools=entry.get("tools", "not measured"),
            usual=entry.get("usual", False),
        )
        for entry in tomllib.loads(text)["model"]
    )


def listed(name: str) -> ListedModel | None:
    """The model of a short name in any case, or a family's usual model for its name alone; None for other names."""
    asked = name.lower()
    return next((one for one in catalogue() if one.name == asked or (one.usual and one.family == asked)), None)


def nearest(name: str, others: Iterable[str] = ()) -> list[str]:
    """Short names, and those of `others`, that resemble `name`, at most four; perhaps none.

    Those that contain it come first, the shortest before longer ones, and then the most similar.
    """
    asked = name.lower()
    short = {one.name for one in catalogue()} | {one.family for one in catalogue() if one.usual}
    names = {known.lower(): known for known in sorted({*short, *others})}
    within = sorted((known for known in names if asked in known), key=len) if len(asked) >= _LEAST else []
    close = get_close_matches(asked, list(names), cutoff=0.5)
    return [names[known] for known in dict.fromkeys([*within, *close])][:_MOST_NEAR]
