"""Layers over weights in a file's own blocks."""

from __future__ import annotations

import torch
from torch import nn

from agentkv_runtime.export.block_kinds import kind_and_bits
from agentkv_runtime.export.cpu.block_ops import block_expert_linear, block_linear, block_lookup
from agentkv_runtime.export.experts import ExpertLinear
from agentkv_runtime.export.quantization import QuantizationError, Recipe
from agentkv_runtime.hf.blocks import Blocks
from agentkv_runtime.hf.deferred import defer

__all__ = ["BlockEmbedding", "BlockExperts", "BlockLinear", "check_blocks"]


def check_blocks(blocks: Blocks | None, weight: torch.Tensor, name: str, recipe: Recipe) -> Blocks:
    """Checks and returns the blocks of a layer's weight `[O, I]` or `[E, O, I]`; records their type, bits and bytes.

    Raises QuantizationError for a weight without blocks, ExportError for a type that the kernels lack.
    """
    if blocks is None:
        raise QuantizationError(
            f"{name} has no blocks of its own: only a GGUF file without an adapter is exported as it is. Choose bits "
            "with --quant"
        )
    recipe.kinds[name], recipe.bits[name] = kind_and_bits(name, blocks.type)
    recipe.bytes[name] = weight.shape[:-1].numel() * blocks.row_bytes
    return blocks


def _rows(blocks: Blocks, *outputs: int) -> nn.Parameter:
    return defer((*outputs, blocks.row_bytes), torch.uint8, blocks.load)


class BlockLinear(nn.Module):
    """Linear layer over a weight in blocks."""

    def __init__(self, linear: nn.Linear, blocks: Blocks) -> None:
        super().__init__()
        self.kind = blocks.type
        self.rows = _rows(blocks, linear.out_features)
        self.bias = linear.bias

    @property
    def weight(self) -> torch.Tensor:
        """An empty tensor of the layer's dtype, for models that read the dtype of a weight."""
        return torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x `[..., I]` -> `[..., O]`."""
        out: torch.Tensor = block_linear(x, self.rows, self.bias, self.kind)
        return out


class BlockExperts(nn.Module):
    """Linear layer of all experts over a weight in blocks."""

    def __init__(self, experts: ExpertLinear, blocks: Blocks) -> None:
        super().__init__()
        self.kind = blocks.type
        self.rows = _rows(blocks, *experts.weight.shape[:2])
        self.bias = experts.bias

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """x `[T, I]` or `[T, K, I]`, chosen `[T, K]` int64 -> `[T, K, O]`."""
        out: torch.Tensor = block_expert_linear(x, chosen, self.rows, self.bias, self.kind)
        return out


class BlockEmbedding(nn.Module):
    """Token embedding over a table in blocks."""

    def __init__(self, embedding: nn.Embedding, blocks: Blocks, factor: float) -> None:
        super().__init__()
        self.kind, self.width, self.factor = blocks.type, embedding.embedding_dim, factor
        self.rows = _rows(blocks, embedding.num_embeddings)

    @property
    def weight(self) -> torch.Tensor:
        """An empty tensor, for models that read the device or dtype of a weight."""
        return torch.empty(0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens `[1, T]` -> `[1, T, H]` float32."""
        rows: torch.Tensor = block_lookup(tokens.reshape(-1), self.rows, self.kind, self.width, self.factor)
        return rows.unsqueeze(0)
