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
    """What a model's weights become, by the names of their layers."""

    kinds: Mapping[str, str]
    inputs: Mapping[str, Floats] = field(default_factory=dict)
    """What an error in each channel `[I]` costs, of those that were measured."""


def plan_blocks(model: Any, layers: Mapping[str, Any], quant: str, importance: Importance | None = None) -> BlockPlan:
    """Plans the weights of a causal model's layers, `[O, I]` or `[E, O, I]`, for one of `BITS`.

    Weights that are tied are planned once, under the name that comes first. Without an importance, layers cost what
    they usually do; beside measured ones, those that were not cost what the middle one does. Raises QuantizationError
    where no kinds keep to the budget.
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
    """A parameter's values, `[O, I]`, experts one below the other."""
    rows = stored(weight).detach().flatten(0, -2).contiguous()
    if rows.dtype == torch.bfloat16:
        return rows.view(torch.uint16).numpy()
    return rows.numpy() if rows.dtype == torch.float16 else rows.float().numpy()


def _factors(importance: Importance | None, names: list[str], height: int) -> tuple[Floats | None, Floats | None]:
    """What errors in a weight's channels and in its rows count.

    Of a tied weight it is the head that counts: it reads every row for every token. An embedding alone has its
    gradients along the channels, and its rows are read one at a time. Rows of experts count the same in all.
    """
    measured = importance or Importance()
    for name in names:
        if name in measured.inputs:
            of_rows = measured.outputs[name]
            return measured.inputs[name].numpy(), of_rows.repeat(height // len(of_rows)).numpy()
    if names[0] not in measured.outputs:
        return None, None
    return measured.outputs[names[0]].numpy(), np.full(height, 1 / height, np.float32)
