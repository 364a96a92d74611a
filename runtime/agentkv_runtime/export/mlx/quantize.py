"""Quantises a model's linear layers and its token embedding for MLX."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from agentkv_runtime.export.mlx.affine import (
    AffineWeight,
    affine_embedding,
    affine_linear,
    affine_quantize,
    group_size,
)
from agentkv_runtime.export.quantization import QuantizationError, embedding_scale

__all__ = ["AffineEmbedding", "AffineLinear", "quantize_affine"]


class _AffineModule(nn.Module):
    """Holds a weight as parameters: of tied buffers, an exported program would keep both copies."""

    def __init__(self, weight: AffineWeight) -> None:
        super().__init__()
        self.packed, self.scales, self.biases = weight.packed, weight.scales, weight.biases
        self.group, self.bits = weight.group, weight.bits


class AffineLinear(_AffineModule):
    """Linear layer over quantised weights."""

    def __init__(self, weight: AffineWeight, bias: torch.Tensor | None) -> None:
        super().__init__(weight)
        self.bias = None if bias is None else nn.Buffer(bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x `[..., I]` -> `[..., O]`."""
        out: torch.Tensor = affine_linear(x, self.packed, self.scales, self.biases, self.bias, self.group, self.bits)
        return out


class AffineEmbedding(_AffineModule):
    """Token embedding over a quantised table."""

    def __init__(self, weight: AffineWeight, scale: float) -> None:
        super().__init__(weight)
        self.scale = scale

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens `[..., T]` -> `[..., T, H]`."""
        rows: torch.Tensor = affine_embedding(self.packed, self.scales, self.biases, tokens, self.group, self.bits)
        return rows if self.scale == 1.0 else rows * self.scale


@torch.no_grad()
def quantize_affine(model: Any, bits: int, dtype: torch.dtype) -> None:
    """Replaces every linear layer and the token embedding of a float32 model in place; a tied head shares its bytes.

    Scales and biases are `dtype`. Raises QuantizationError naming a layer whose rows do not divide into groups.
    """
    # By the weight itself, which tied layers share.
    quantized: dict[torch.Tensor, AffineWeight] = {}

    def weight_of(module: nn.Linear | nn.Embedding, name: str) -> AffineWeight:
        if module.weight not in quantized:
            width = module.weight.shape[1]
            group = group_size(width)
            if group is None:
                raise QuantizationError(
                    f"affine{bits} groups 64 or 32 weights, but the rows of {name} have {width}: use none"
                )
            quantized[module.weight] = affine_quantize(module.weight, bits, group, dtype)
        return quantized[module.weight]

    embedding = model.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding):
        raise QuantizationError(f"cannot quantise a token embedding of type {type(embedding).__name__}")
    model.set_input_embeddings(AffineEmbedding(weight_of(embedding, "the embedding"), embedding_scale(embedding)))
    for path, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, AffineLinear(weight_of(child, f"{path}.{name}".lstrip(".")), child.bias))
