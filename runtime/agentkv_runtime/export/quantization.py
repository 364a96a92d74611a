"""Shared by the weight quantisation of all backends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from agentkv_runtime.errors import QuantizationError
from agentkv_runtime.export.made import EMBEDDING_TITLE
from agentkv_runtime.folder.manifest import Quantization, Scales

if TYPE_CHECKING:
    from agentkv_runtime.export.blocks.importance import Importance

__all__ = ["AUTO", "EMBEDDING", "QuantizationError", "Recipe", "embedding_scale"]

AUTO = "auto"
"""In the place of a pattern: the layers whose weights lose most, as far as they are a sixteenth of all."""

EMBEDDING = EMBEDDING_TITLE


@dataclass(frozen=True)
class Recipe:
    """How weights are quantised."""

    quant: Quantization = "none"
    scales: Scales = "search"
    """How the scales of 4-bit weights are chosen."""
    int8: tuple[str, ...] = ()
    """Patterns of names of the linear layers that get 8 bits where others get 4; or AUTO among them."""
    embedding: int = 16
    """Bits of the token embedding, 16, 8 or 4, where anything is quantised."""
    importance: Importance | None = None
    """What an error in each weight costs, where that was measured."""
    bits: dict[str, int] = field(default_factory=dict)
    """Of each weight that is quantised, by the layer's name; it fills while the model is prepared."""
    kinds: dict[str, str] = field(default_factory=dict)
    """The type of each weight in a file whose own blocks are run, and what it became where its values changed; it fills
    while the model is prepared."""
    errors: dict[str, float] = field(default_factory=dict)
    """Relative error of each weight by the layer's name; it fills while weights are packed."""
    counts: dict[str, int] = field(default_factory=dict)
    """Numbers in each weight, quantised or not; it fills before the model is prepared."""
    bytes: dict[str, int] = field(default_factory=dict)
    """Of each weight in the program, scales included; it fills with `counts`, and changes with what is quantised."""


def embedding_scale(embedding: nn.Embedding) -> float:
    """The factor that an embedding applies to its rows (Gemma scales by the square root of the width)."""
    token = torch.zeros((1, 1), dtype=torch.int64)
    for index in range(min(embedding.num_embeddings, 64)):
        token.fill_(index)
        row, scaled = embedding.weight[index].double(), embedding(token)[0, 0].double()
        if row.norm() > 0:
            return round(float((row @ scaled) / (row @ row)), 5)
    return 1.0
