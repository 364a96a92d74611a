"""Prompts that are being computed, whose cells others leave to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from .._engine.interface import CellEngine, StepEngine


class Underway:
    """Prompts that are being computed, of those who wait for each other. For the engine's thread."""

    def __init__(self) -> None:
        self.lengths: dict[int, int] = {}  # of branches, once they are computed

    def cells(self, engine: StepEngine) -> int:
        """Number of cells that they will take yet."""
        live, rests = engine.live(), cast("CellEngine", engine).rests
        for id in [id for id in self.lengths if id not in live or rests(id)]:
            del self.lengths[id]
        return sum(max(length - engine.length(id), 0) for id, length in self.lengths.items())
