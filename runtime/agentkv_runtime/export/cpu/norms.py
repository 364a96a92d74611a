"""Normalisation layers in a form that lowers well: inside XNNPACK's partition, or as our op next to attention."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

from agentkv_runtime.export.norms import RmsNorm

__all__ = ["LinearLayerNorm", "LinearRmsNorm", "linear_norms", "row_norms"]


class LinearRmsNorm(nn.Module):
    """RMSNorm whose mean is a product with a constant row, which XNNPACK keeps in one partition with its neighbours."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        width = weight.shape[0]
        self.weight = nn.Buffer(weight.detach().clone())
        self.mean = nn.Buffer(torch.full((1, width), 1.0 / width))
        self.eps = nn.Buffer(torch.full((1,), eps))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises the last dimension of x `[..., width]`."""
        return x * torch.rsqrt(functional.linear(x * x, self.mean, self.eps)) * self.weight


class LinearLayerNorm(nn.Module):
    """LayerNorm with both means as products with a constant row."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> None:
        super().__init__()
        width = weight.shape[0]
        self.weight = nn.Buffer(weight.detach().clone())
        self.bias = nn.Buffer(bias.detach().clone()) if bias is not None else None
        self.mean = nn.Buffer(torch.full((1, width), 1.0 / width))
        self.eps = nn.Buffer(torch.full((1,), eps))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises the last dimension of x `[..., width]`."""
        centred = x - functional.linear(x, self.mean)
        y = centred * torch.rsqrt(functional.linear(centred * centred, self.mean, self.eps)) * self.weight
        return y if self.bias is None else y + self.bias


def linear_norms(
    weight: torch.Tensor, bias: torch.Tensor | None, eps: float, near_attention: bool
) -> Iterator[nn.Module]:
    """Candidates: RMSNorm, next to attention as the delegate's op, then LayerNorm."""
    yield RmsNorm(weight, eps) if near_attention else LinearRmsNorm(weight, eps)
    yield LinearLayerNorm(weight, bias, eps)


def row_norms(weight: torch.Tensor, bias: torch.Tensor | None, eps: float, near_attention: bool) -> Iterator[nn.Module]:
    """Candidates: RMSNorm as the delegate's op, for models whose linear layers are the delegate's, too."""
    del near_attention
    yield RmsNorm(weight, eps)
    yield LinearLayerNorm(weight, bias, eps)
