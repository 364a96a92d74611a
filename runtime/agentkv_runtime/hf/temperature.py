"""Scaling of queries by their position (Llama 4), using the positions that `feeding` announces."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["Temperature", "take_temperatures"]


class Temperature:
    """Factor of a layer's queries."""

    def __init__(self, floor_scale: float, attn_scale: float) -> None:
        self.floor_scale, self.attn_scale = floor_scale, attn_scale

    def of(self, position: torch.Tensor) -> torch.Tensor:
        """Factors for position `[T]`, float32 `[T, 1]`."""
        steps = torch.floor((position.float() + 1.0) / self.floor_scale)
        return (torch.log1p(steps) * self.attn_scale + 1.0)[:, None]


def take_temperatures(model: nn.Module) -> None:
    """Makes attention layers that count positions themselves leave the scaling to our attention, in place."""
    for module in model.modules():
        layer: Any = module
        if getattr(layer, "attn_temperature_tuning", False) and not layer.use_rope:
            layer.temperature = Temperature(float(layer.floor_scale), float(layer.attn_scale))
            layer.attn_temperature_tuning = False
