"""Quantisation of linear layers, experts and the token embedding for MLX."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from agentkv_runtime.export.experts import ExpertLinear
from agentkv_runtime.export.linears import is_plain_linear
from agentkv_runtime.export.mlx.affine import (
    AffineWeight,
    affine_embedding,
    affine_error,
    affine_linear,
    affine_quantize,
    group_size,
)
from agentkv_runtime.export.mlx.affine_experts import affine_expert_linear
from agentkv_runtime.export.mlx.file_weights import file_weight
from agentkv_runtime.export.quantization import EMBEDDING, QuantizationError, Recipe, embedding_scale

__all__ = ["AffineEmbedding", "AffineExperts", "AffineLinear", "quantize_affine"]

_BITS = {"affine8": 8, "affine4": 4}


class _AffineModule(nn.Module):
    """A module with an affine weight as parameters, as an exported program would store tied buffers twice."""

    def __init__(self, weight: AffineWeight) -> None:
        super().__init__()
        self.packed, self.scales, self.biases = weight.packed, weight.scales, weight.biases
        self.group, self.bits = weight.group, weight.bits


class AffineLinear(_AffineModule):
    """Linear layer over quantised weights."""

    def __init__(self, weight: AffineWeight, bias: torch.Tensor | None) -> None:
        super().__init__(weight)
        self.bias = None if bias is None else nn.Buffer(bias.detach().clone())

    @property
    def weight(self) -> torch.Tensor:
        """An empty tensor of the layer's dtype, for models that read the dtype of a weight."""
        return self.scales[:0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x `[..., I]` -> `[..., O]`."""
        out: torch.Tensor = affine_linear(x, self.packed, self.scales, self.biases, self.bias, self.group, self.bits)
        return out


class AffineExperts(_AffineModule):
    """Linear layer of all experts over quantised weights."""

    def __init__(self, weight: AffineWeight, bias: torch.Tensor | None) -> None:
        super().__init__(weight)
        self.bias = None if bias is None else nn.Buffer(bias.detach().clone())

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """x `[T, I]` or `[T, K, I]`, chosen `[T, K]` int64 -> `[T, K, O]`."""
        out: torch.Tensor = affine_expert_linear(
            x, chosen, self.packed, self.scales, self.biases, self.bias, self.group, self.bits
        )
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


def _fewer_bits(weight: torch.Tensor, name: str, recipe: Recipe, dtype: torch.dtype) -> AffineWeight:
    group = group_size(weight.shape[-1])
    if group is None:
        raise QuantizationError(
            f"{recipe.quant} groups 64 or 32 weights, but the rows of {name} have {weight.shape[-1]}: use none"
        )
    made = affine_quantize(weight, _BITS[recipe.quant], group, dtype)
    recipe.errors[name] = affine_error(made, weight)
    return made


@torch.no_grad()
def quantize_affine(model: Any, recipe: Recipe, dtype: torch.dtype) -> None:
    """Replaces linear layers and the token embedding of a float32 model in place; a tied head shares its bytes.

    Layers whose weights are floats in a GGUF file stay unchanged. Scales and biases are `dtype`. Raises
    QuantizationError naming a layer whose rows do not divide into groups.
    """
    # By the weight itself, which tied layers share.
    quantized: dict[torch.Tensor, AffineWeight | None] = {}
    choose = file_weight if recipe.quant == "file" else _fewer_bits

    def weight_of(weight: torch.Tensor, name: str) -> AffineWeight | None:
        if weight not in quantized:
            made = quantized[weight] = choose(weight, name, recipe, dtype)
            if made is not None:
                recipe.bits[name], recipe.bytes[name] = made.bits, made.nbytes
        return quantized[weight]

    embedding = model.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding):
        raise QuantizationError(f"cannot quantise a token embedding of type {type(embedding).__name__}")
    if (table := weight_of(embedding.weight, EMBEDDING)) is not None:
        model.set_input_embeddings(AffineEmbedding(table, embedding_scale(embedding)))
    for path, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            if not (is_plain_linear(child) or isinstance(child, ExpertLinear)):
                continue
            kind = AffineExperts if isinstance(child, ExpertLinear) else AffineLinear
            if (made := weight_of(child.weight, f"{path}.{name}".lstrip("."))) is not None:
                setattr(parent, name, kind(made, child.bias))
