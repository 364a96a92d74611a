"""Token embeddings in 16, 8 or 4 bits, written in ops that the runtime has kernels for.

Their tables are called `weight`, as some models read its device.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from agentkv_runtime.export.cpu.codes import GROUP_SIZE, Codes
from agentkv_runtime.hf.deferred import defer, stored

__all__ = ["CodeEmbedding", "PackedEmbedding", "TableEmbedding"]


class TableEmbedding(nn.Module):
    """Token embedding with its table at 16 bits."""

    def __init__(self, table: torch.Tensor, scale: float) -> None:
        super().__init__()
        self.weight = defer(table.shape, torch.float16, lambda: stored(table))
        self.scale = scale

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens `[1, T]` -> `[1, T, H]` float32."""
        rows = functional.embedding(tokens, self.weight).float()
        return rows if self.scale == 1.0 else rows * self.scale


class CodeEmbedding(nn.Module):
    """Token embedding at 8 bits, with a scale per token: two lookups and a product."""

    def __init__(self, codes: Codes, shape: torch.Size, scale: float) -> None:
        super().__init__()
        self.weight = defer(shape, torch.int8, lambda: codes.take("codes"))
        self.scales = defer((shape[0], 1), torch.float32, lambda: codes.take("scales") * scale)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens `[1, T]` -> `[1, T, H]` float32."""
        return functional.embedding(tokens, self.weight).float() * functional.embedding(tokens, self.scales)


def _packed(codes: torch.Tensor) -> torch.Tensor:
    """Packs 4-bit codes `[V, H]` two to an int8: a code of the first half + 8, and 16 times one of the second."""
    low, high = codes.chunk(2, dim=1)
    return high * 16 + (low + 8)


class PackedEmbedding(nn.Module):
    """Token embedding at 4 bits, with a scale for each group of a row."""

    def __init__(self, codes: Codes, shape: torch.Size, scale: float) -> None:
        super().__init__()
        tokens, width = shape
        self.weight = defer((tokens, width // 2), torch.int8, lambda: _packed(codes.take("codes")))
        self.scales = defer((tokens, width // GROUP_SIZE), torch.float16, lambda: codes.take("scales"))
        self.scale = scale

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens `[1, T]` -> `[1, T, H]` float32."""
        pairs = functional.embedding(tokens, self.weight).float()
        high = torch.floor(pairs * 0.0625)  # there is no shift to share with the rest of the graph
        codes = torch.cat((pairs - high * 16 - 8, high), dim=-1)
        scales = functional.embedding(tokens, self.scales).float() * self.scale
        rows = codes.view(1, -1, scales.shape[-1], GROUP_SIZE) * scales.unsqueeze(-1)
        return rows.view(1, -1, codes.shape[-1])
