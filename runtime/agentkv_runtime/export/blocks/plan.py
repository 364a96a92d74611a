"""The block types of a model's weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from agentkv_runtime.export.blocks.importance import Importance
from agentkv_runtime.export.blocks.recipe import budget_of, choices_of, choose_kinds
from agentkv_runtime.hf.deferred import stored

__all__ = ["FITS_ALL", "BlockPlan", "plan_blocks"]

FITS_ALL = "f16"
"""The kind of rows that no blocks divide."""
_NARROWEST = 32  # numbers of the smallest blocks


@dataclass(frozen=True)
class BlockPlan:
    """What a model's weights become, by the names of their layers."""

    kinds: Mapping[str, str]
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """What an error in each channel `[I]` costs, of those that were measured."""


def plan_blocks(model: Any, layers: Mapping[str, Any], quant: str, importance: Importance | None = None) -> BlockPlan:
    """Plans the weights of a causal model's layers, `[O, I]` or `[E, O, I]`, for one of `BITS`.

    Weights that are tied are planned once, under the name that comes first. Rows that are no multiple of 32 become
    halves, which the budget does not count. Raises QuantizationError where no kinds keep to the budget.
    """
    measured = importance or Importance()
    names: dict[torch.Tensor, list[str]] = {}
    for name, layer in layers.items():
        names.setdefault(layer.weight, []).append(name)
    head = model.get_output_embeddings()
    kinds, inputs, choices, shapes, heads = {}, {}, {}, {}, []
    for weight, (name, *others) in names.items():
        rows, width = weight.numel() // weight.shape[-1], weight.shape[-1]
        if width % _NARROWEST:
            kinds[name] = FITS_ALL
            continue
        of_channels, of_rows = _factors(measured, [name, *others], rows)
        if of_channels is not None:
            inputs[name] = of_channels
        shapes[name] = (rows, width)
        choices[name] = choices_of(stored(weight).reshape(rows, width), of_channels, of_rows)
        if head is not None and weight is head.weight:
            heads.append(name)
    return BlockPlan(kinds | choose_kinds(choices, budget_of(shapes, heads, quant)), inputs)


def _factors(measured: Importance, names: list[str], height: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What errors in a weight's channels and in its rows count.

    Of a tied weight it is the head that counts: it reads every row for every token. An embedding alone has its
    gradients along the channels, and its rows are read one at a time. Rows of experts count the same in all.
    """
    for name in names:
        if name in measured.inputs:
            of_rows = measured.outputs[name]
            return measured.inputs[name], of_rows.repeat(height // len(of_rows))
    if names[0] not in measured.outputs:
        return None, None
    return measured.outputs[names[0]], torch.full((height,), 1 / height)
