"""Blocks of a model's weights, made when a program loads them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from agentkv_runtime._core import block_types
from agentkv_runtime.export.blocks.plan import numbers_of, plan_blocks
from agentkv_runtime.export.blocks.rows import Floats, quantize_rows
from agentkv_runtime.export.quantization import Recipe
from agentkv_runtime.hf.blocks import Blocks

__all__ = ["planned_blocks"]

_TYPES = {name: (kind, size / numbers) for kind, name, numbers, size in block_types()}


def planned_blocks(model: Any, layers: Mapping[str, Any], recipe: Recipe) -> dict[torch.Tensor, Blocks]:
    """Blocks of the weights of a model's layers, by weight, in the quantisation of the recipe.

    Loading quantises them and records the relative error in the recipe. Raises QuantizationError as `plan_blocks` and
    `quantize_rows` do.
    """
    plan = plan_blocks(model, layers, recipe.quant, recipe.importance)
    planned = {layers[name].weight: (name, kind) for name, kind in plan.kinds.items()}
    tied = [layer.weight for layer in layers.values()]
    return {
        weight: _blocks(weight, name, kind, plan.inputs.get(name), recipe, sum(each is weight for each in tied) > 1)
        for weight, (name, kind) in planned.items()
    }


def _blocks(weight: torch.Tensor, name: str, kind: str, inputs: Floats | None, recipe: Recipe, tied: bool) -> Blocks:
    def make() -> torch.Tensor:
        made = quantize_rows(numbers_of(weight), kind, inputs)
        recipe.errors[name] = made.error
        shaped: torch.Tensor = torch.from_numpy(made.rows).unflatten(0, weight.shape[:-1])
        return shaped

    of_type, bytes_each = _TYPES[kind]
    return Blocks(of_type, round(weight.shape[-1] * bytes_each), cache(make) if tied else make)
