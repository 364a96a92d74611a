"""The block types of a model's weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import torch

from agentkv_runtime.export.blocks.importance import Importance
from agentkv_runtime.export.blocks.recipe import budget_of, choices_of, choose_kinds
from agentkv_runtime.hf.deferred import stored

__all__ = ["FITS_ALL", "BlockPlan", "plan_blocks"]

FITS_ALL = "bf16"
"""The kind of weights that no blocks hold."""
_NARROWEST = 32  # numbers of the smallest blocks
_LEAST, _MOST = 1e-3, 3e4  # of a weight's largest number: steps are halves, and parts of them


@dataclass(frozen=True)
class BlockPlan:
    """What a model's weights become, by the names of their layers."""

    kinds: Mapping[str, str]
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """What an error in each channel `[I]` costs, of those that were measured."""


def plan_blocks(model: Any, layers: Mapping[str, Any], quant: str, importance: Importance | None = None) -> BlockPlan:
    """Plans the weights of a causal model's layers, `[O, I]` or `[E, O, I]`, for one of `BITS`.

    Weights that are tied are planned once, under the name that comes first. Those whose rows are no multiple of 32, and
    whose numbers are far from 1, become bfloat16, which the budget does not count. Raises QuantizationError where no
    kinds keep to the budget.
    """
    measured = importance or Importance()
    names: dict[torch.Tensor, list[str]] = {}
    for name, layer in layers.items():
        names.setdefault(layer.weight, []).append(name)
    usual = measured.usual()
    head = model.get_output_embeddings()
    kinds, inputs, choices, shapes, heads = {}, {}, {}, {}, []
    for weight, (name, *others) in names.items():
        rows, width = weight.numel() // weight.shape[-1], weight.shape[-1]
        numbers = stored(weight).reshape(rows, width)
        if not _fits(numbers):
            kinds[name] = FITS_ALL
            continue
        of_channels, of_rows = _factors(measured, [name, *others], rows)
        if of_channels is not None:
            inputs[name] = of_channels
        shapes[name] = (rows, width)
        found = choices_of(numbers, of_channels, of_rows)
        choices[name] = found if of_rows is not None else [replace(each, loss=each.loss * usual) for each in found]
        if head is not None and weight is head.weight:
            heads.append(name)
    return BlockPlan(kinds | choose_kinds(choices, budget_of(shapes, heads, quant)), inputs)


def _fits(numbers: torch.Tensor) -> bool:
    """Do blocks divide the rows, and do their steps reach the numbers? Those that are not finite are refused later."""
    largest = float(numbers.abs().amax())
    return not numbers.shape[1] % _NARROWEST and (not largest or not isfinite(largest) or _LEAST <= largest <= _MOST)


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
