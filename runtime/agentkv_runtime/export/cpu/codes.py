"""Lazy quantisation of a weight into codes and scales."""

from __future__ import annotations

import torch

from agentkv_runtime.export.cpu.scales import Quantized, quantized_weight
from agentkv_runtime.export.quantization import Recipe
from agentkv_runtime.hf.deferred import stored

__all__ = ["GROUP_SIZE", "Codes"]

GROUP_SIZE = 32
"""Numbers of a row that share a scale at 4 bits; at 8 bits the whole row shares one."""
_SCALE_BYTES = {4: 2, 8: 4}  # as they are stored: 16 bits of a float, or 32


class Codes:
    """Codes and scales of a weight `[..., O, I]`, made when one is taken and kept until the other is taken, too."""

    def __init__(self, weight: torch.Tensor, bits: int, recipe: Recipe, name: str) -> None:
        self._weight, self._bits, self._recipe, self._name = weight, bits, recipe, name
        self.group = GROUP_SIZE if bits == 4 else weight.shape[-1]
        self._made: Quantized | None = None
        self._left: set[str] = set()
        recipe.bits[name] = bits
        n_scales = weight.numel() // self.group
        recipe.bytes[name] = weight.numel() * bits // 8 + n_scales * _SCALE_BYTES[bits]

    def take(self, part: str) -> torch.Tensor:
        """Returns the `codes` or the `scales` with the weight's leading dimensions, and records the weight's error."""
        if self._made is None or part not in self._left:
            rows = stored(self._weight).flatten(0, -2)
            self._made = quantized_weight(rows, self._bits, self.group, self._recipe.scales)
            self._left = {"codes", "scales"}
            self._recipe.errors[self._name] = self._made.error
        made: torch.Tensor = getattr(self._made, part)
        tensor: torch.Tensor = made.unflatten(0, self._weight.shape[:-1])
        self._left.remove(part)
        if not self._left:
            self._made = None
        return tensor
