"""Feed-forward layers in forms that lower exactly and stay in one partition."""

from __future__ import annotations

import math
from inspect import signature

import torch
from torch import nn
from torch.nn import functional

from agentkv_runtime.export.experts import ExpertLinear
from agentkv_runtime.export.gates import Gate
from agentkv_runtime.export.norms import RmsNorm
from agentkv_runtime.export.row_ops import gate
from agentkv_runtime.hf.blocks import as_rows
from agentkv_runtime.hf.deferred import defer, present, stored

__all__ = ["RowGate", "SplitMlp", "TanhGelu", "replace_feed_forward", "replace_gates"]


class TanhGelu(nn.Module):
    """Tanh-approximated GELU in elementary ops, as XNNPACK would compute the exact GELU instead."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Elementwise over x of any shape."""
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))))


class RowGate(nn.Module):
    """An activation through our own op, which the delegate computes between its linear layers."""

    def __init__(self, kind: Gate) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Elementwise over x of any shape."""
        out: torch.Tensor = gate(x, int(self.kind))
        return out


def _rows(weight: torch.Tensor, rows: slice) -> nn.Parameter:
    part = defer((rows.stop - rows.start, weight.shape[1]), weight.dtype, lambda: stored(weight)[rows])
    return as_rows(weight, rows, part)


class SplitMlp(nn.Module):
    """A gated layer with separate gate and up projections, as slices of a fused one break partitions."""

    def __init__(self, gate_up: nn.Linear, down: nn.Linear, activation: nn.Module) -> None:
        super().__init__()
        width = gate_up.out_features // 2
        bias = gate_up.bias
        self.gate_proj, self.up_proj = (
            nn.Linear(gate_up.in_features, width, bias=bias is not None, device="meta") for _ in range(2)
        )
        for layer, rows in ((self.gate_proj, slice(0, width)), (self.up_proj, slice(width, 2 * width))):
            layer.weight = _rows(gate_up.weight, rows)
            if bias is not None:
                layer.bias = nn.Parameter(bias.detach()[rows].clone(), requires_grad=False)
        self.down_proj = down
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x `[..., hidden]` -> `[..., hidden]`."""
        out: torch.Tensor = self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return out


def _is_tanh_gelu(module: nn.Module) -> bool:
    if isinstance(module, TanhGelu) or "gelu" not in type(module).__name__.lower():
        return False
    x = torch.linspace(-6, 6, 97)
    return torch.allclose(module(x), functional.gelu(x, approximate="tanh"), rtol=1e-5, atol=1e-6)


def _split(module: nn.Module) -> SplitMlp | None:
    gate_up, down = getattr(module, "gate_up_proj", None), getattr(module, "down_proj", None)
    activation = getattr(module, "activation_fn", None) or getattr(module, "act_fn", None)
    if not (isinstance(gate_up, nn.Linear) and isinstance(down, nn.Linear) and isinstance(activation, nn.Module)):
        return None
    if gate_up.out_features != 2 * down.in_features or len(signature(module.forward).parameters) > 1:
        return None
    split = SplitMlp(gate_up, down, activation)
    x = torch.randn((1, 2, gate_up.in_features), generator=torch.Generator().manual_seed(0))
    with present(module):
        expected = module(x)
    with present(split):
        return split if torch.allclose(split(x), expected, rtol=1e-4, atol=1e-5) else None


@torch.no_grad()
def replace_feed_forward(model: nn.Module) -> None:
    """Replaces activations and fused feed-forward layers of the model in place, where ours compute the same."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if _is_tanh_gelu(child):
                setattr(parent, name, TanhGelu())
            elif (split := _split(child)) is not None:
                setattr(parent, name, split)


def _row_gate(module: nn.Module) -> RowGate | None:
    if isinstance(module, TanhGelu) or _is_tanh_gelu(module):
        return RowGate(Gate.TANH_GELU)
    if "silu" not in type(module).__name__.lower():
        return None
    x = torch.linspace(-6, 6, 97)
    return RowGate(Gate.SILU) if torch.allclose(module(x), functional.silu(x), rtol=1e-5, atol=1e-6) else None


@torch.no_grad()
def replace_gates(model: nn.Module, quantized: bool) -> None:
    """Replaces activations of the model in place, where ours compute the same: those of experts, and with `quantized`
    also those next to linear layers, which are then ours."""
    beside = (nn.Linear, ExpertLinear, RmsNorm) if quantized else ExpertLinear
    for parent in list(model.modules()):
        children = list(parent.named_children())
        if not any(isinstance(child, beside) for _, child in children):
            continue
        for name, child in children:
            if (own := _row_gate(child)) is not None:
                setattr(parent, name, own)
