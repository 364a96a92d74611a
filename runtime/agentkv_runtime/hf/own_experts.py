"""Mixtures of experts that compute only the experts that a row chose."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from agentkv_runtime.hf.attention import attends_here
from agentkv_runtime.hf.deferred import defer, stored
from agentkv_runtime.hf.expert_op import expert_linear, weighted_sum

__all__ = ["expert_parameters", "is_experts", "route_experts"]


def is_experts(module: nn.Module) -> bool:
    """Whether the module has the weights of all experts in the form of transformers' experts interface."""
    return hasattr(module, "is_transposed") and hasattr(module, "has_gate")


def expert_parameters(module: Any) -> tuple[str, str]:
    """Names of the module's two weights, `[E, O, I]`, or `[E, I, O]` if it `is_transposed`."""
    return "gate_up_proj" if module.has_gate else "up_proj", "down_proj"


def _layer(module: Any, name: str, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    weight = getattr(module, name)
    if isinstance(weight, nn.Module):  # an exporter's own
        layer: torch.Tensor = weight(x, chosen)
        return layer
    bias = getattr(module, f"{name}_bias") if module.has_bias else None
    out: torch.Tensor = expert_linear(x, chosen, weight.transpose(1, 2) if module.is_transposed else weight, bias)
    return out


def _activated(module: Any, x: torch.Tensor) -> torch.Tensor:
    if not module.has_gate:
        activated: torch.Tensor = module.act_fn(x)
        return activated
    own = getattr(type(module), "_apply_gate", None)
    if own is not None and own.__name__ != "_default_apply_gate":
        gated: torch.Tensor = own(module, x)
        return gated
    width = x.shape[-1] // 2
    product: torch.Tensor = module.act_fn(x[..., :width]) * x[..., width:]
    return product


def _run(module: Any, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """x `[T, H]` or `[T, K, H]`, chosen `[T, K]` -> results of the chosen experts, `[T, K, H]`."""
    up, down = expert_parameters(module)
    x = _layer(module, down, _activated(module, _layer(module, up, x, chosen)), chosen)
    return module.post_expert_norm(x) if module.has_post_expert_norm else x


def _routes_here(module: Any) -> bool:
    """Whether our routing applies: the model attends through a cache, or an exporter has replaced its weights."""
    return attends_here() or isinstance(module.down_proj, nn.Module)


def _experts(
    module: Any, original: Callable[..., Any], rows: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    if not _routes_here(module):
        outcome: torch.Tensor = original(rows, chosen, weights)
        return outcome
    summed: torch.Tensor = weighted_sum(_run(module, rows, chosen), weights)
    return summed.to(rows.dtype)


_LLAMA4_LAYOUT = {"has_gate": True, "has_bias": False, "has_post_expert_norm": False, "is_transposed": True}
"""Attributes of transformers' interface for Llama 4's experts, which do not use it."""


def _llama4(layer: Any, original: Callable[..., Any], hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Routing of Llama 4, whose experts get a row times its score."""
    if not _routes_here(layer.experts):
        outcome: tuple[torch.Tensor, torch.Tensor] = original(hidden_states)
        return outcome
    rows = hidden_states.reshape(-1, layer.hidden_dim)
    _, logits = layer.router(rows)
    best, chosen = logits.topk(layer.top_k, dim=1)
    scored = rows.unsqueeze(1) * best.float().sigmoid().to(rows.dtype).unsqueeze(-1)
    routed = layer.experts(scored, chosen)
    return layer.shared_expert(rows) + routed, logits


def _llama4_experts(
    module: Any, original: Callable[..., Any], rows: torch.Tensor, chosen: torch.Tensor | None = None
) -> torch.Tensor:
    """Sum of the results of a row's chosen experts; without `chosen`, runs the model's own code on sorted rows."""
    if chosen is None:
        outcome: torch.Tensor = original(rows)
        return outcome
    return _run(module, rows, chosen).sum(1)


def _longcat(
    module: Any, original: Callable[..., Any], rows: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Experts of LongCat, of which those beyond the last with weights return their row."""
    if not _routes_here(module):
        outcome: torch.Tensor = original(rows, chosen, weights)
        return outcome
    has_weights = chosen < module.num_routed_experts
    run = _run(module, rows, chosen.clamp(max=module.num_routed_experts - 1))
    kept = (weights * ~has_weights).sum(-1, keepdim=True)
    summed: torch.Tensor = weighted_sum(run, weights * has_weights) + rows * kept
    return summed.to(rows.dtype)


def _dbrx(
    module: Any, original: Callable[..., Any], hidden_states: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    if not _routes_here(module):
        outcome: torch.Tensor = original(hidden_states, chosen, weights)
        return outcome
    rows = hidden_states.reshape(-1, module.hidden_size)
    summed: torch.Tensor = weighted_sum(_run(module, rows, chosen), weights)
    return summed.view(hidden_states.shape).to(hidden_states.dtype)


_PLAIN_LAYOUT = {**_LLAMA4_LAYOUT, "is_transposed": False}


def _as_others_hold(module: Any) -> None:
    """Gives DBRX's experts, stored in one matrix with separate gates, the form of the interface."""
    held, shape = module.mlp, (module.num_experts, module.ffn_hidden_size, module.hidden_size)

    def part(weight: torch.Tensor) -> torch.Tensor:
        return stored(weight).view(shape)

    experts, inner, hidden = shape
    w1, v1, w2 = held.w1, held.v1, held.w2
    module.gate_up_proj = defer((experts, 2 * inner, hidden), w1.dtype, lambda: torch.cat((part(w1), part(v1)), 1))
    module.down_proj = defer((experts, hidden, inner), w2.dtype, lambda: part(w2).transpose(1, 2))
    module.act_fn = held.activation_fn


_OWN: dict[str, Callable[..., Any]] = {
    "DbrxExperts": _dbrx,
    "Llama4TextExperts": _llama4_experts,
    "Llama4TextMoe": _llama4,
    "LongcatFlashExperts": _longcat,
}
_LAYOUTS = {
    "DbrxExperts": _PLAIN_LAYOUT,
    "Llama4TextExperts": _LLAMA4_LAYOUT,
    "LongcatFlashExperts": _PLAIN_LAYOUT,
}


def route_experts(model: nn.Module) -> None:
    """Makes a model's experts run only for the rows that chose them when it attends through a cache, in place.

    Without a cache it runs as before. May be called again.
    """
    for module in model.modules():
        if "forward" in vars(module):
            continue
        vars(module).update(_LAYOUTS.get(type(module).__name__, {}))
        if type(module).__name__ == "DbrxExperts":
            _as_others_hold(module)
        own = _OWN.get(type(module).__name__, _experts if is_experts(module) else None)
        if own is not None:
            module.forward = partial(own, module, module.forward)
