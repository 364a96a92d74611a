"""Rewrites a model for MLX: norms that are one operation, experts' weights as layers, quantised weights, one dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from agentkv_runtime.export.experts import own_expert_layers
from agentkv_runtime.export.mlx.quantize import quantize_affine
from agentkv_runtime.export.norms import RmsNorm, replace_norms
from agentkv_runtime.export.quantization import Recipe
from agentkv_runtime.folder.manifest import DType
from agentkv_runtime.hf.dtypes import TORCH_DTYPES

__all__ = ["LayerNorm", "prepare"]


class LayerNorm(nn.Module):
    """LayerNorm over the last dimension."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> None:
        super().__init__()
        self.weight = nn.Buffer(weight.detach().clone())
        self.bias = None if bias is None else nn.Buffer(bias.detach().clone())
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises the last dimension of x `[..., width]`."""
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def _norms(weight: torch.Tensor, bias: torch.Tensor | None, eps: float, near_attention: bool) -> Iterator[nn.Module]:
    del near_attention
    yield RmsNorm(weight, eps)
    yield LayerNorm(weight, bias, eps)


def _cast(model: nn.Module, dtype: torch.dtype) -> None:
    """Casts all floats except frequencies, which in half precision would give wrong angles at far positions."""
    for module in model.modules():
        if type(module).__name__.endswith("RotaryEmbedding"):
            continue
        for name, buffer in module.named_buffers(recurse=False):
            if buffer._is_view():  # tracing wants views to have the dtype of what they are of
                module._buffers[name] = buffer.clone()
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(dtype)


def prepare(model: Any, recipe: Recipe, dtype: DType) -> None:
    """Rewrites a float32 model in place. Raises QuantizationError naming a layer that does not fit the recipe."""
    replace_norms(model, _norms)
    own_expert_layers(model)
    if recipe.quant != "none":
        quantize_affine(model, recipe, TORCH_DTYPES[dtype])
    _cast(model, TORCH_DTYPES[dtype])
