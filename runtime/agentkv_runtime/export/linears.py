"""Linear layers in the one form that backends lower and quantise."""

from __future__ import annotations

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from agentkv_runtime.hf.blocks import as_outputs
from agentkv_runtime.hf.deferred import defer, stored

__all__ = ["is_plain_linear", "replace_transposed_linears"]


def is_plain_linear(module: nn.Module) -> bool:
    """Whether the module is only a linear layer; a router may return more than the product."""
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


def _plain(layer: Conv1D) -> nn.Linear:
    inputs, outputs = layer.weight.shape
    weight = layer.weight
    linear = nn.Linear(inputs, outputs, device="meta")
    linear.weight = as_outputs(weight, defer((outputs, inputs), weight.dtype, lambda: stored(weight).t()))
    linear.bias = nn.Parameter(layer.bias.detach().clone(), requires_grad=False)
    return linear


@torch.no_grad()
def replace_transposed_linears(model: nn.Module) -> None:
    """Replaces the layers of GPT-2 and similar models, whose weights are `[in, out]`, in place."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Conv1D):
                setattr(parent, name, _plain(child))
