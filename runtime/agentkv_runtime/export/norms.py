"""Replacement of a model's normalisation layers by ones that a backend lowers well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import nn

from agentkv_runtime.export.row_ops import rms_norm

__all__ = ["Norms", "RmsNorm", "note_norm_widths", "replace_norms"]

Norms = Callable[[torch.Tensor, torch.Tensor | None, float, bool], Iterator[nn.Module]]
"""Yields a backend's layers for (weight `[width]`, bias `[width]`, epsilon, near attention), the likeliest first."""


class RmsNorm(nn.Module):
    """RMSNorm through our own op, which a delegate computes."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Buffer(weight.detach().clone())
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises the last dimension of x `[..., width]`."""
        out: torch.Tensor = rms_norm(x, self.weight.to(x.dtype), self.eps)
        return out


def _eps(module: nn.Module) -> tuple[float, ...]:
    """The module's epsilon, or candidates if it has no attribute for it."""
    for name in ("variance_epsilon", "eps", "epsilon", "norm_eps"):
        value = getattr(module, name, None)
        if isinstance(value, float):
            return (value,)
    return (1e-5, 1e-6)


def _width(module: nn.Module) -> int | None:
    """Size of the normalised dimension; None if the module does not tell."""
    if shape := getattr(module, "normalized_shape", None):
        return int(shape[-1])
    weight = getattr(module, "weight", None)
    return weight.shape[0] if isinstance(weight, torch.Tensor) and weight.dim() == 1 else None


class GatedNorm(nn.Module):
    """RMSNorm of groups of numbers, with a silu gate before or after."""

    def __init__(self, norm: nn.Module, weight: torch.Tensor, groups: int, gate_first: bool) -> None:
        super().__init__()
        self.norm = norm  # of one group, where there are several without their weights
        self.weight = nn.Buffer(weight.detach().clone()) if groups > 1 else None
        self.groups = groups
        self.gate_first = gate_first
        self.gate = nn.SiLU()

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Normalises the last dimension of x `[..., width]`; gate `[..., width]`."""
        if self.gate_first:
            x = self.gate(gate) * x
        if self.weight is None:
            x = self.norm(x)
        else:
            x = self.norm(x.unflatten(-1, (self.groups, -1))).flatten(-2) * self.weight
        return x if self.gate_first else self.gate(gate) * x


def _is_norm(module: nn.Module) -> bool:
    return type(module).__name__.endswith("Norm")


@torch.no_grad()
def note_norm_widths(model: nn.Module, run: Callable[[], object]) -> None:
    """Sets `normalized_shape` of norm layers without weights, observed on their inputs while `run` runs the model.

    A layer with inputs of several sizes gets none, and is not replaced.
    """
    met: dict[nn.Module, set[int]] = {}

    def meet(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], torch.Tensor):
            met.setdefault(module, set()).add(args[0].shape[-1])

    hooks = [module.register_forward_pre_hook(meet) for module in model.modules() if _is_norm(module)]
    if not hooks:
        return
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    for module, widths in met.items():
        if len(widths) == 1 and _width(module) not in widths:  # weights of another size are for show (Falcon Mamba)
            module.normalized_shape = (widths.pop(),)  # type: ignore[assignment]


def _equivalent(module: nn.Module, norms: Norms, near_attention: bool) -> nn.Module | None:
    """A backend's layer that computes the same as `module`, checked on random rows; None without one."""
    width = _width(module)
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
    if weight is not None and weight.shape != (width,):
        weight = None
    ones = torch.ones(width)
    weights = [ones] if weight is None else [weight.float(), weight.float() + 1]
    for w, eps in product(weights, _eps(module)):
        for candidate in norms(w, bias, eps, near_attention):
            if torch.allclose(candidate(x), expected, rtol=1e-4, atol=1e-5):
                return candidate
    return None


def _gated_equivalent(module: nn.Module, norms: Norms) -> nn.Module | None:
    """Like `_equivalent`, for a layer that takes a gate beside its rows."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1:
        return None
    width = weight.shape[0]
    groups = width // int(getattr(module, "group_size", width))
    generator = torch.Generator().manual_seed(0)
    x, gate = (torch.randn((1, 4, width), generator=generator) for _ in range(2))
    try:
        expected = module(x, gate)
    except Exception:  # an unusual signature: transformers' own layer stays
        return None
    of_group = weight.float() if groups == 1 else torch.ones(width // groups)
    for gate_first, eps in product((False, True), _eps(module)):
        for norm in norms(of_group, None, eps, True):
            candidate = GatedNorm(norm, weight.float(), groups, gate_first)
            if torch.allclose(candidate(x, gate), expected, rtol=1e-4, atol=1e-5):
                return candidate
    return None


@torch.no_grad()
def replace_norms(model: nn.Module, norms: Norms) -> int:
    """Replaces norm layers with a known equivalent in place; returns the number of replaced layers.

    The model is float32: equivalence is checked in that precision.
    """
    replaced = 0
    for parent in list(model.modules()):
        near_attention = "Attention" in type(parent).__name__
        for name, child in list(parent.named_children()):
            if _is_norm(child):
                candidate = _equivalent(child, norms, near_attention)
            elif type(child).__name__.endswith("NormGated"):
                candidate = _gated_equivalent(child, norms)
            else:
                continue
            if candidate is not None:
                setattr(parent, name, candidate)
                replaced += 1
    return replaced
