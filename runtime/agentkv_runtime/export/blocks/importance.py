"""What an error in each weight costs, measured on a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from agentkv_runtime.export.experts import ExpertLinear
from agentkv_runtime.export.quantization import QuantizationError
from agentkv_runtime.quality import default_text

__all__ = ["Importance", "calibration_text", "measure_importance", "windows_of"]

_SKIPPED = 60_000  # characters at the text's beginning, which the measurement of perplexity reads


@dataclass
class Importance:
    """By the names of linear layers, those of experts too, and of the token embedding. An error `E` of a weight
    `[O, I]` raises the loss by about half of `outputs @ E**2 @ inputs`, one of a weight `[E, O, I]` by the sum of that
    over experts: the Fisher information, its factors and their diagonals alone, as in https://arxiv.org/abs/1503.05671.
    """

    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    """float32 `[I]`: the mean square of each input, for experts of the rows that meet one."""
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    """float32 `[O]`: the mean square of the loss's gradient at each output, for experts over all of them: it is 0 at
    those that a token did not choose."""


def calibration_text() -> str:
    """English prose, tables, and source that every Python has: the help topics."""
    return default_text()[_SKIPPED:]


def windows_of(ids: Sequence[int], first: Sequence[int] = (), count: int = 32, length: int = 256) -> torch.Tensor:
    """int64 `[count, length]`, fewer for a short text: stretches of a text's tokens, taken evenly from all of it.

    `first` are the tokens that each window begins with, for models that want a beginning of a sequence. Raises
    QuantizationError where the text has no whole window.
    """
    width = length - len(first)
    whole = len(ids) // width
    if not whole:
        raise QuantizationError(f"the calibration text has {len(ids)} tokens. Give one of {length} or more")
    taken = [whole * index // min(count, whole) for index in range(min(count, whole))]
    return torch.tensor([[*first, *ids[at * width : (at + 1) * width]] for at in taken])


def measure_importance(model: nn.Module, windows: torch.Tensor) -> Importance:
    """The importance of a causal model's linear layers and embeddings for windows `[W, T]` of tokens.

    The model is one of transformers, in float32 and in memory; experts are seen where `own_expert_layers` made layers
    of them. Its parameters get no gradients; what a window takes is
    its activations. Equal windows give equal numbers.
    """
    importance = Importance()
    kinds = nn.Linear | nn.Embedding | ExpertLinear
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, kinds)}
    hooks = [layer.register_forward_hook(_summing(importance, name)) for name, layer in layers.items()]
    wanted = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        model.requires_grad_(False)
        for window in windows:
            _loss(model, window).backward()
    finally:
        for hook in hooks:
            hook.remove()
        for parameter, before in wanted.items():
            parameter.requires_grad_(before)
    tokens = windows.shape[0] * (windows.shape[1] - 1)
    for sums in (importance.inputs, importance.outputs):
        for total in sums.values():
            total /= tokens
    return importance


def _loss(model: nn.Module, window: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        logits = model(input_ids=window[None, :-1], use_cache=False).logits[0]
        return nn.functional.cross_entropy(logits, window[1:], reduction="sum")


def _summing(importance: Importance, name: str) -> Any:
    def add(sums: dict[str, torch.Tensor], rows: torch.Tensor, per_token: int = 1) -> None:
        squares = rows.detach().flatten(0, -2).square().sum(0) / per_token
        sums[name] = sums[name] + squares if name in sums else squares

    def hook(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        experts = 1
        if isinstance(layer, ExpertLinear):
            rows, chosen = inputs
            experts = len(layer.weight)
            add(importance.inputs, rows, chosen.shape[1] if rows.dim() == 3 else 1)
        elif isinstance(layer, nn.Linear):
            add(importance.inputs, inputs[0])
        elif not output.requires_grad:
            output.requires_grad_()  # the first that a gradient reaches: no parameter wants one
        output.register_hook(lambda gradient: add(importance.outputs, gradient, experts))

    return hook
