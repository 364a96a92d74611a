"""Linear layers in the one form that backends lower and quantise."""

from __future__ import annotations

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

__all__ = ["replace_transposed_linears"]


def _plain(layer: Conv1D) -> nn.Linear:
    inputs, outputs = layer.weight.shape
    linear = nn.Linear(inputs, outputs)
    linear.weight = nn.Parameter(layer.weight.detach().t().contiguous(), requires_grad=False)
    linear.bias = nn.Parameter(layer.bias.detach().clone(), requires_grad=False)
    return linear


@torch.no_grad()
def replace_transposed_linears(model: nn.Module) -> None:
    """Replaces in place the layers of GPT-2 and its kin, which keep their weight `[in, out]`."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Conv1D):
                setattr(parent, name, _plain(child))
