"""A snapshot of what a Context has done and holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What a Context has done since it was opened, and what it holds, as of the last completed verb; frozen.

    Attributes:
        steps: rounds of the step loop that ran a forward.
        forwards: forwards of the model; a step needs several where it exceeds the program's bounds, or is retried.
        tokens: tokens fed to the model (rows), `prefilled` and decoded together.
        prefilled: of these, tokens of prompts and `extend`.
        generated: tokens that were sampled.
        reused: tokens that `branch` took from a live branch instead of prefilling them.
        drafted: draft tokens that the model verified.
        accepted: of these, tokens that came true.
        retries: rows that were fed again after a forward failed.
        rows_per_step: how many steps had how many rows, {rows: steps}.
        branches: live branches.
        cells: cache cells that are allocated now, grown on demand up to `capacity`.
        cells_used: of these, cells that some branch holds.
        cells_shared: of these, cells that two or more branches hold.
        capacity: cells that the cache may hold.
        kv_bytes: bytes of keys and values that are allocated now: 2 x layers x `cells` x n_kv_heads x head_dim x
            bytes of one number; int8 and int4 add a float16 scale and bias per group of 64 or 32 numbers.
        forward_seconds: time spent inside the model's forwards, in seconds.
        draft_seconds: time spent drafting, in seconds.
    """

    steps: int = 0
    forwards: int = 0
    tokens: int = 0
    prefilled: int = 0
    generated: int = 0
    reused: int = 0
    drafted: int = 0
    accepted: int = 0
    retries: int = 0
    rows_per_step: Mapping[int, int] = field(default_factory=dict)
    branches: int = 0
    cells: int = 0
    cells_used: int = 0
    cells_shared: int = 0
    capacity: int = 0
    kv_bytes: int = 0
    forward_seconds: float = 0.0
    draft_seconds: float = 0.0

    @property
    def cells_free(self) -> int:
        """Cells that no branch holds."""
        return self.capacity - self.cells_used

    @property
    def mean_rows(self) -> float:
        """Rows per step on average; 0 before the first step."""
        return self.tokens / self.steps if self.steps else 0.0


def stats_of(engine: Mapping[str, Any]) -> Stats:
    """The snapshot for what `Engine.stats()` returned."""
    return Stats(
        steps=engine["steps"],
        forwards=engine["forwards"],
        tokens=engine["rows"],
        prefilled=engine["prefill_rows"],
        generated=engine["tokens_generated"],
        reused=engine["tokens_reused"],
        drafted=engine["tokens_drafted"],
        accepted=engine["tokens_accepted"],
        retries=engine["retries"],
        rows_per_step=dict(engine["rows_per_step"]),
        branches=engine["branches"],
        cells=engine.get("cells", 0),
        cells_used=engine["cells_used"],
        cells_shared=engine["cells_shared"],
        capacity=engine["capacity"],
        kv_bytes=engine.get("kv_bytes", 0),
        forward_seconds=engine["native_forward_seconds"],
        draft_seconds=engine["draft_seconds"],
    )
