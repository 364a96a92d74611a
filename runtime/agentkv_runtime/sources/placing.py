"""Copying of weights into a model in memory."""

from __future__ import annotations

import torch

from agentkv_runtime.errors import ExportError
from agentkv_runtime.hf.weights import Weights, checked_float

__all__ = ["place_weights"]


@torch.no_grad()
def place_weights(weights: Weights, model: torch.nn.Module) -> list[str]:
    """Fills the parameters and saved buffers of a model; returns the names that `weights` lacks.

    Raises ExportError for a tensor of another shape, UnsupportedModelError for codes.
    """
    there = set(weights.names())
    missing = []
    saved = model.state_dict().keys()
    buffers = [(name, buffer) for name, buffer in model.named_buffers() if name in saved]
    for name, parameter in (*model.named_parameters(), *buffers):
        if name not in there:
            missing.append(name)
            continue
        tensor = checked_float(name, weights.load(name))
        if tensor.shape != parameter.shape:
            raise ExportError(
                f"{name} is {list(tensor.shape)}, but the model's config makes it {list(parameter.shape)}. They "
                "do not belong together"
            )
        parameter.copy_(tensor)
    return missing
