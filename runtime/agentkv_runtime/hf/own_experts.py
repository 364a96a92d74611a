"""Mixtures of experts whose own code cannot be traced for any number of rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from agentkv_runtime.hf.attention import attends_here

__all__ = ["trace_experts"]


def _llama4(layer: Any, original: Callable[..., Any], hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every expert sees every row, times its score there, as in transformers: scores of others than the best are 0."""
    if not attends_here():
        outcome: tuple[torch.Tensor, torch.Tensor] = original(hidden_states)
        return outcome
    rows = hidden_states.reshape(-1, layer.hidden_dim)
    scores, logits = layer.router(rows)
    shared = layer.shared_expert(rows)
    return shared + layer.experts(rows[None] * scores.t()[:, :, None]).sum(dim=0), logits


def _llama4_experts(layer: Any, original: Callable[..., Any], rows: torch.Tensor) -> torch.Tensor:
    """rows `[E, T, H]` of each expert, here; side by side as one matrix in the model's own code."""
    if not attends_here():
        outcome: torch.Tensor = original(rows)
        return outcome
    gate, up = torch.bmm(rows, layer.gate_up_proj).chunk(2, dim=-1)
    return torch.bmm(up * layer.act_fn(gate), layer.down_proj)


_OWN = {"Llama4TextMoe": _llama4, "Llama4TextExperts": _llama4_experts}


def trace_experts(model: nn.Module) -> None:
    """Puts forms that can be traced into a model, in place; by itself it runs as before."""
    for module in model.modules():
        if (ours := _OWN.get(type(module).__name__)) is not None:
            module.forward = partial(ours, module, module.forward)
