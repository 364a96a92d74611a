"""Shared by the weight quantisation of all backends."""

from __future__ import annotations

import torch
from torch import nn

from agentkv_runtime.errors import ExportError

__all__ = ["QuantizationError", "embedding_scale"]


class QuantizationError(ExportError):
    """The model's layers do not fit the chosen quantisation."""


def embedding_scale(embedding: nn.Embedding) -> float:
    """The factor that an embedding applies to its rows (Gemma scales by the square root of the width)."""
    token = torch.zeros((1, 1), dtype=torch.int64)
    for index in range(min(embedding.num_embeddings, 64)):
        token.fill_(index)
        row, scaled = embedding.weight[index].double(), embedding(token)[0, 0].double()
        if row.norm() > 0:
            return round(float((row @ scaled) / (row @ row)), 5)
    return 1.0
