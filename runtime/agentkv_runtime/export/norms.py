"""Normalisation layers in a form that lowers well: inside XNNPACK's partition, or as our op next to attention."""

from __future__ import annotations

from itertools import product

import torch
from torch import nn
from torch.nn import functional

from agentkv_runtime.export.row_ops import rms_norm

__all__ = ["AttentionRmsNorm", "LinearLayerNorm", "LinearRmsNorm", "replace_norms"]


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


class AttentionRmsNorm(nn.Module):
    """RMSNorm of queries or keys, which the attention delegate computes."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Buffer(weight.detach().clone())
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises the last dimension of x `[..., width]`."""
        out: torch.Tensor = rms_norm(x, self.weight, self.eps)
        return out


def _eps(module: nn.Module) -> tuple[float, ...]:
    """The module's epsilon, or what it may be where the module does not say."""
    for name in ("variance_epsilon", "eps", "epsilon", "norm_eps"):
        value = getattr(module, name, None)
        if isinstance(value, float):
            return (value,)
    return (1e-5, 1e-6)


def _width(module: nn.Module, default: int) -> int | None:
    weight = getattr(module, "weight", None)
    if isinstance(weight, torch.Tensor):
        return weight.shape[0] if weight.dim() == 1 else None
    shape = getattr(module, "normalized_shape", None)
    return int(shape[-1]) if shape else default


def _equivalent(module: nn.Module, default_width: int, near_attention: bool) -> nn.Module | None:
    """A lowering-friendly layer that computes what `module` does, checked on random rows; None when there is none."""
    width = _width(module, default_width)
    if width is None:
        return None
    # Rows of several sizes, down to where epsilon decides the result.
    sizes = torch.tensor([[3.0], [1.0], [0.01], [0.001]])
    x = (torch.randn((1, 4, width), generator=torch.Generator().manual_seed(0)) + 0.2) * sizes
    try:
        expected = module(x)
    except Exception:  # an unusual signature: transformers' own layer stays
        return None
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    ones = torch.ones(width)
    weights = [ones] if weight is None else [weight.float(), weight.float() + 1]
    rms: type[LinearRmsNorm] | type[AttentionRmsNorm] = AttentionRmsNorm if near_attention else LinearRmsNorm
    for w, eps in product(weights, _eps(module)):
        for candidate in (rms(w, eps), LinearLayerNorm(w, bias, eps)):
            if torch.allclose(candidate(x), expected, rtol=1e-4, atol=1e-5):
                return candidate
    return None


@torch.no_grad()
def replace_norms(model: nn.Module, hidden_size: int) -> int:
    """Replaces the model's norm layers in place where an equivalent is known; returns how many were replaced."""
    replaced = 0
    for parent in list(model.modules()):
        near_attention = "Attention" in type(parent).__name__
        for name, child in list(parent.named_children()):
            if not type(child).__name__.endswith("Norm"):
                continue
            candidate = _equivalent(child, hidden_size, near_attention)
            if candidate is not None:
                setattr(parent, name, candidate)
                replaced += 1
    return replaced
