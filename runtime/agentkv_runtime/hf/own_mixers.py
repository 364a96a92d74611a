"""Layers that mix tokens in code of their own, with no function that ours could stand in for: they run ours instead.

Each entry is what a layer computes, in our words, where the model attends through a cache. That it says the same is
checked on every model that is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from agentkv_runtime.hf.attention import attends_here, mixing, mixing_layer
from agentkv_runtime.hf.convolution import short_conv
from agentkv_runtime.hf.deferred import load_all
from agentkv_runtime.hf.linear_attention import linear_attention
from agentkv_runtime.hf.selective_scan import selective_scan

__all__ = ["mix_by_ours"]


def _lfm2(layer: Any, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
    width = hidden_states.shape[-1]
    projected = layer.in_proj(hidden_states)
    before, after, x = (projected[..., i * width : (i + 1) * width] for i in range(3))
    gated = before * x
    _, position, cache_layer = mixing(gated)
    out: torch.Tensor = layer.out_proj(
        after * short_conv(gated, layer.conv.weight, layer.conv.bias, position, cache_layer)
    )
    return out


def _lightning(layer: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
    """Lightning attention (Qin et al. 2024), as MiniMax has it: every head fades at a rate of its own."""
    heads, width = layer.num_attention_heads, layer.head_dim
    mixed = layer.act_fn(layer.qkv_proj(hidden_states)).unflatten(-1, (heads, 3 * width))
    query, key, value = (mixed[..., i * width : (i + 1) * width] for i in range(3))
    decay = -layer.slope_rate.reshape(1, 1, heads).float() * torch.ones_like(query[..., 0])
    _, position, cache_layer = mixing(key)
    rows = linear_attention(query, key, value, decay, None, False, None, position, cache_layer).flatten(2)
    return layer.out_proj(torch.sigmoid(layer.output_gate(hidden_states)) * layer.norm(rows)), None


def _gate(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """x `[T, C]`, weight `[H, C / H, C / H]`, bias `[H, C / H]` -> `[T, C]`."""
    heads = x.unflatten(1, (weight.shape[0], -1)).transpose(0, 1)
    return torch.sigmoid((heads @ weight).transpose(0, 1) + bias).flatten(1)


def _griffin(layer: Any, input_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
    """RG-LRU behind a convolution (De et al. 2024)."""
    unit = layer.rg_lru
    projected = layer.linear_x(input_states)
    _, position, cache_layer = mixing(projected)
    x = short_conv(projected, layer.conv_1d.weight, layer.conv_1d.bias, position, cache_layer)[0]
    decay = (
        -8.0
        * functional.softplus(unit.recurrent_param)
        * _gate(x, unit.recurrent_gate_weight, unit.recurrent_gate_bias)
    )
    first = (position == 0)[:, None]
    scale = torch.where(first, 1.0, torch.sqrt(1.0 - torch.exp(2.0 * decay)))
    added = x * _gate(x, unit.input_gate_weight, unit.input_gate_bias) * scale
    _, position, cache_layer = mixing(added)
    ones = torch.ones_like(added[None, :, :1])
    rows = selective_scan(added[None], decay[None], unit.rates, ones, ones, position, cache_layer)
    return layer.linear_out(rows * layer.act_fn(layer.linear_y(input_states))), None


def _prepare_griffin(layer: Any) -> None:
    load_all(layer.conv_1d)
    load_all(layer.rg_lru)
    layer.rg_lru.register_buffer("rates", torch.ones(1, layer.lru_width), persistent=False)


def _prepare_conv(layer: Any) -> None:
    load_all(layer.conv)  # small, and read without being called


_OWN: dict[str, tuple[Callable[..., Any], Callable[[Any], None] | None]] = {
    "Lfm2MoeShortConv": (_lfm2, _prepare_conv),
    "Lfm2ShortConv": (_lfm2, _prepare_conv),
    "MiniMaxLightningAttention": (_lightning, None),
    "RecurrentGemmaRecurrentBlock": (_griffin, _prepare_griffin),
}


def _chosen(
    layer: Any, original: Callable[..., Any], ours: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    if not attends_here():
        return original(*args, **kwargs)
    with mixing_layer(layer):
        return ours(layer, *args, **kwargs)


def mix_by_ours(model: nn.Module) -> None:
    """Lets such layers keep what they keep in the cache, in place; by itself the model runs as before."""
    for name, module in model.named_modules():
        own = _OWN.get(type(module).__name__)
        if own is None:
            continue
        layer: Any = module
        if not hasattr(layer, "layer_idx"):
            layer.layer_idx = next(int(part) for part in name.split(".") if part.isdigit())
        ours, prepare = own
        if prepare is not None:
            prepare(layer)
        layer.forward = partial(_chosen, layer, layer.forward, ours)
