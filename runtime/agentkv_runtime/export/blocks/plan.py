"""The block types of the weights of a model that torch has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from agentkv_runtime.export.blocks.fixed import usual_cost
from agentkv_runtime.export.blocks.importance import Importance
from agentkv_runtime.export.blocks.recipe import Candidate, plan_kinds
from agentkv_runtime.export.blocks.rows import Floats, Numbers
from agentkv_runtime.hf.deferred import stored

__all__ = ["BlockPlan", "numbers_of", "plan_blocks"]


@dataclass(frozen=True)
class BlockPlan:
    """Block kinds of a model's weights, by the names of their layers."""

    kinds: Mapping[str, str]
    inputs: Mapping[str, Floats] = field(default_factory=dict)
    """Cost of an error in each channel, float32 `[I]`, for layers that were measured."""


def plan_blocks(model: Any, layers: Mapping[str, Any], quant: str, importance: Importance | None = None) -> BlockPlan:
    """Plans the block kinds of a causal model's weights, `[O, I]` or `[E, O, I]`, for one of `BITS`.

    Tied weights are planned once, under the name that comes first. Without an importance, layers have their fixed
    costs; with one, layers that were not measured have the median cost. Raises QuantizationError if no kinds keep to
    the budget.
    """
    names: dict[torch.Tensor, list[str]] = {}
    for name, layer in layers.items():
        names.setdefault(layer.weight, []).append(name)
    head = model.get_output_embeddings()
    weights: dict[str, Candidate] = {}
    for weight, called in names.items():
        rows = weight.numel() // weight.shape[-1]
        of_channels, of_rows = _factors(importance, called, rows)
        usual = usual_cost(called[-1], rows) if importance is None else importance.usual()
        weights[called[0]] = Candidate(
            shape=(rows, weight.shape[-1]),
            numbers=partial(numbers_of, weight),
            is_head=head is not None and weight is head.weight,
            counts=usual if of_rows is None else 1.0,
            inputs=of_channels,
            outputs=of_rows,
        )
    inputs = {name: each.inputs for name, each in weights.items() if each.inputs is not None}
    return BlockPlan(plan_kinds(weights, quant), inputs)


def numbers_of(weight: torch.Tensor) -> Numbers:
    """Values of a parameter, `[O, I]`, with the rows of all experts concatenated."""
    rows = stored(weight).detach().flatten(0, -2).contiguous()
    if rows.dtype == torch.bfloat16:
        return rows.view(torch.uint16).numpy()
    return rows.numpy() if rows.dtype == torch.float16 else rows.float().numpy()


def _factors(importance: Importance | None, names: list[str], height: int) -> tuple[Floats | None, Floats | None]:
    """Costs of errors in a weight's channels, float32 `[I]`, and rows, float32 `[height]`; None if not measured.

    For a tied weight the head counts, as it reads every row for every token. A lone embedding has its gradients along
    the channels, and each row an equal share. Experts share the costs of their rows.
    """
    measured = importance or Importance()
    for name in names:
        if name in measured.inputs:
            of_rows = measured.outputs[name]
            return measured.inputs[name].numpy(), of_rows.repeat(height // len(of_rows)).numpy()
    if names[0] not in measured.outputs:
        return None, None
    return measured.outputs[names[0]].numpy(), np.full(height, 1 / height, np.float32)
