"""Shapes of models that are measured, and how many bytes a token of them reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GROUP = 32  # int4 weights that share one 16-bit scale, in `8da4w` as in Q4_0


@dataclass(frozen=True)
class Shape:
    """A decoder whose embedding is its output head as well."""

    model_type: Literal["llama", "qwen3"]
    vocab: int
    hidden: int
    layers: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    positions: int

    @property
    def weight_bytes(self) -> float:
        """What each forward reads of 4-bit linears; of the embedding it reads a row per token."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        linears = self.layers * (attention + 3 * self.hidden * self.ffn) + self.vocab * self.hidden
        return linears * (0.5 + 2 / GROUP)

    @property
    def cell_bytes(self) -> int:
        """K and V of one token in all layers, fp16."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2

    def limit(self, depth: int, branches: int, bandwidth: float) -> float:
        """Tokens per second of branches on one trunk, were there nothing but reads (bytes per second) to wait for."""
        return branches * bandwidth / (self.weight_bytes + depth * self.cell_bytes)


SHAPES = {
    "qwen3-0.6b": Shape("qwen3", 151_936, 1024, 28, 3072, 16, 8, 128, 40_960),
    "smollm2-135m": Shape("llama", 49_152, 576, 30, 1536, 9, 3, 64, 8192),
}
