"""Recipe of weight quantisation, shared by all backends."""

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
"""Pattern that stands for the layers with the largest errors, up to a sixteenth of all weights."""

EMBEDDING = EMBEDDING_TITLE


@dataclass(frozen=True)
class Recipe:
    """Options of weight quantisation, and a record of its results."""

    quant: Quantization = "none"
    scales: Scales = "search"
    """Method of choosing the scales of 4-bit weights."""
    int8: tuple[str, ...] = ()
    """Patterns of names of linear layers that get 8 bits when others get 4; may include AUTO."""
    embedding: int = 16
    """Bits of the token embedding, 16, 8 or 4, if weights are quantised."""
    importance: Importance | None = None
    """Measured cost of errors in each weight; None without a measurement."""
    bits: dict[str, int] = field(default_factory=dict)
    """Bits of each quantised weight, by layer name; filled while the model is prepared."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Type in the file of each weight whose blocks are run, and its new type if values changed; filled while the model
    is prepared."""
    errors: dict[str, float] = field(default_factory=dict)
    """Relative error of each weight, by layer name; filled while weights are packed."""
    counts: dict[str, int] = field(default_factory=dict)
    """Numbers in each weight, quantised or not; filled before the model is prepared."""
    bytes: dict[str, int] = field(default_factory=dict)
    """Bytes of each weight in the program, scales included; filled with `counts`, updated by quantisation."""


def embedding_scale(embedding: nn.Embedding) -> float:
    """Factor that an embedding applies to its rows; Gemma's is the square root of the width."""
    token = torch.zeros((1, 1), dtype=torch.int64)
    for index in range(min(embedding.num_embeddings, 64)):
        token.fill_(index)
        row, scaled = embedding.weight[index].double(), embedding(token)[0, 0].double()
        if row.norm() > 0:
            return round(float((row @ scaled) / (row @ row)), 5)
    return 1.0
