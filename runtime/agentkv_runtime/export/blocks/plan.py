"""The block types of a model's weights, and their bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from agentkv_runtime.export.blocks.importance import Importance
from agentkv_runtime.export.blocks.recipe import budget_of, choices_of, choose_kinds
from agentkv_runtime.export.blocks.rows import quantize_rows

__all__ = ["BlockPlan", "plan_blocks"]


@dataclass(frozen=True)
class BlockPlan:
    """What a model's weights become, by the names of their layers."""

    kinds: Mapping[str, str]
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """What an error in each channel `[I]` costs, of those that were measured."""

    def make_blocks(self, name: str, weight: torch.Tensor) -> tuple[str, torch.Tensor]:
        """The kind of a layer's weight `[O, I]`, and its bytes, uint8 `[O, bytes]`.

        Raises KeyError for a layer that the plan does not have, and QuantizationError as `quantize_rows` does.
        """
        kind = self.kinds[name]
        return kind, quantize_rows(weight, kind, self.inputs.get(name))


def plan_blocks(model: nn.Module, quant: str, importance: Importance | None = None) -> BlockPlan:
    """Plans the linear layers and embeddings of a causal model of transformers, for one of `BITS`.

    Weights that are tied are planned once, under the name that `named_modules` gives first. Raises QuantizationError
    for rows that no kind fits.
    """
    measured = importance or Importance()
    names: dict[torch.Tensor, list[str]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            names.setdefault(layer.weight, []).append(name)
    head = model.get_output_embeddings()  # type: ignore[operator]
    inputs, choices, shapes, heads = {}, {}, {}, []
    for weight, (name, *others) in names.items():
        of_channels, of_rows = _factors(measured, [name, *others], len(weight))
        if of_channels is not None:
            inputs[name] = of_channels
        shapes[name] = (weight.shape[0], weight.shape[1])
        choices[name] = choices_of(weight, of_channels, of_rows)
        if head is not None and weight is head.weight:
            heads.append(name)
    return BlockPlan(choose_kinds(choices, budget_of(shapes, heads, quant)), inputs)


def _factors(measured: Importance, names: list[str], height: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What errors in a weight's channels and in its rows count.

    Of a tied weight it is the head that counts: it reads every row for every token. An embedding alone has its
    gradients along the channels, and its rows are read one at a time.
    """
    for name in names:
        if name in measured.inputs:
            return measured.inputs[name], measured.outputs[name]
    if names[0] not in measured.outputs:
        return None, None
    return measured.outputs[names[0]], torch.full((height,), 1 / height)
