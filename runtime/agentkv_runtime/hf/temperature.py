"""Queries that grow with their position (Llama 4): by the positions that `feeding` announces, not counted from 0."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["Temperature", "take_temperatures"]


class Temperature:
    """By what a layer multiplies its queries."""

    def __init__(self, floor_scale: float, attn_scale: float) -> None:
        self.floor_scale, self.attn_scale = floor_scale, attn_scale

    def of(self, position: torch.Tensor) -> torch.Tensor:
        """position `[T]` -> float32 `[T, 1]`."""
        steps = torch.floor((position.float() + 1.0) / self.floor_scale)
        return (torch.log1p(steps) * self.attn_scale + 1.0)[:, None]


def take_temperatures(model: nn.Module) -> None:
    """Has attention layers that would count positions themselves leave it to our attention, in place."""
    for module in model.modules():
        layer: Any = module
        if getattr(layer, "attn_temperature_tuning", False) and not layer.use_rope:
            layer.temperature = Temperature(float(layer.floor_scale), float(layer.attn_scale))
            layer.attn_temperature_tuning = False
