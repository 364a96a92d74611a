"""Weights of a mixture's experts as layers with one orientation, so that exporters can replace them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from agentkv_runtime.hf.blocks import as_outputs
from agentkv_runtime.hf.deferred import defer, is_deferred, stored
from agentkv_runtime.hf.expert_op import expert_linear
from agentkv_runtime.hf.own_experts import expert_parameters, is_experts, route_experts

__all__ = ["ExpertLinear", "own_expert_layers"]


class ExpertLinear(nn.Module):
    """A linear layer of all experts, of which each row uses those that it chose."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight = weight
        """Weights, `[E, O, I]`."""
        self.bias = bias
        """Biases, `[E, O]`, or None."""
        self.experts = int(weight.shape[0])
        self.in_features = int(weight.shape[2])

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """x `[T, I]` or `[T, K, I]`, chosen `[T, K]` int64 -> `[T, K, O]`."""
        out: torch.Tensor = expert_linear(x, chosen, self.weight, self.bias)
        return out


def _upright(weight: nn.Parameter) -> nn.Parameter:
    """`[E, I, O]` -> `[E, O, I]`."""
    if not is_deferred(weight):
        return nn.Parameter(weight.transpose(1, 2).contiguous(), requires_grad=False)
    experts, inputs, outputs = weight.shape
    return defer((experts, outputs, inputs), weight.dtype, lambda: stored(weight).transpose(1, 2))


@torch.no_grad()
def own_expert_layers(model: nn.Module) -> None:
    """Replaces each weight of the model's experts by an `ExpertLinear` of its name. May be called again."""
    route_experts(model)
    for module in list(model.modules()):
        if not is_experts(module):
            continue
        experts: Any = module
        for name in expert_parameters(module):
            weight = getattr(experts, name)
            if isinstance(weight, ExpertLinear):
                continue
            weight = as_outputs(weight, _upright(weight)) if experts.is_transposed else weight
            bias = getattr(experts, f"{name}_bias") if experts.has_bias else None
            delattr(experts, name)
            setattr(experts, name, ExpertLinear(weight, bias))
