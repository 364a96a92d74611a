"""What is measured of each: tokens per second of decoding at a depth, of prefill, of branches on one trunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Decode:
    """Branches that decode together behind one trunk of `depth` tokens."""

    depth: int
    branches: int = 1

    def __str__(self) -> str:
        return f"{self.branches} on one {self.depth:,}-cell trunk" if self.branches > 1 else f"decode at {self.depth:,}"


@dataclass(frozen=True)
class Prefill:
    """A prompt of so many tokens, at depth 0."""

    tokens: int

    def __str__(self) -> str:
        return f"prefill {self.tokens:,}"


Row = Decode | Prefill


class Peer(Protocol):
    """One of those that are measured."""

    name: str

    def rate(self, row: Row) -> float:
        """Tokens per second, of all branches together, measured once."""


def measured_rows(depths: Sequence[int], branches: Sequence[int], trunk: int, prompt: int) -> list[Row]:
    """Those of the table and of both plots, each once."""
    rows = [*(Decode(depth) for depth in depths), Prefill(prompt), *(Decode(trunk, count) for count in branches)]
    return list(dict.fromkeys(rows))
