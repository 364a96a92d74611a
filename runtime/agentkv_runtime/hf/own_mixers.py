"""Replacements of whole layers that mix tokens otherwise than by attention, in code without replaceable functions.

Each entry is our version of a layer, used when the model attends through a cache. Loading a model checks that both give
the same.
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
from agentkv_runtime.hf.deferred import load_all, value
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
    """Lightning attention (Qin et al. 2024), as in MiniMax, with a decay rate per head."""
    heads, width = layer.num_attention_heads, layer.head_dim
    mixed = layer.act_fn(layer.qkv_proj(hidden_states)).unflatten(-1, (heads, 3 * width))
    query, key, value = (mixed[..., i * width : (i + 1) * width] for i in range(3))
    decay = -layer.slope_rate.reshape(1, 1, heads).float() * torch.ones_like(query[..., 0])
    _, position, cache_layer = mixing(key)
    rows = linear_attention(query, key, value, decay, None, False, None, position, cache_layer).flatten(2)
    return layer.out_proj(torch.sigmoid(layer.output_gate(hidden_states)) * layer.norm(rows)), None


def _mlstm(
    layer: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    igate: torch.Tensor,
    fgate: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The matrix memory of xLSTM (Beck et al. 2024), query, key and value `[1, H, T, D]`, gates `[1, H, T]`.

    The result is divided by the sum of its keys, which is one more number of values. Gates are capped, so that neither
    needs a common factor divided out.
    """
    del layer
    queries, keys, values, inputs, forgets = (each.transpose(1, 2) for each in (query, key, value, igate, fgate))
    counted = torch.cat((values, torch.ones_like(values[..., :1])), -1)
    decay = -functional.softplus(-forgets.float())
    _, position, cache_layer = mixing(keys)
    scaled = queries * queries.shape[-1] ** -0.5
    rows = linear_attention(scaled, keys, counted, decay, torch.exp(inputs), False, None, position, cache_layer)
    return (rows[..., :-1] / rows[..., -1:].abs().clamp(min=1.0)).transpose(1, 2), None


def _gate(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """x `[T, C]`, weight `[H, C / H, C / H]`, bias `[H, C / H]` -> `[T, C]`."""
    heads = x.unflatten(1, (weight.shape[0], -1)).transpose(0, 1)
    return torch.sigmoid((heads @ weight).transpose(0, 1) + bias).flatten(1)


def _griffin(layer: Any, input_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
    """RG-LRU after a convolution (De et al. 2024)."""
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


def _zaya(layer: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, ...]:
    """Compressed convolutional attention (2025): queries and keys of a few tokens, half of the values a token late."""
    projected = layer.q_proj(hidden_states), layer.k_proj(hidden_states)
    queries, keys = (each.unflatten(-1, (-1, layer.head_dim)) for each in projected)
    shared = layer.num_key_value_groups
    query_rest = (queries + keys.repeat_interleave(shared, 2)) * 0.5
    key_rest = query_rest.unflatten(2, (-1, shared)).mean(3)
    mixed = layer.conv_qk_grouped.bias
    for j in range(layer.conv_qk_grouped.kernel_size[0]):  # of the token j before
        rows = _shifted(torch.cat(projected, -1), getattr(layer, f"taps_{j}")) + layer.conv_qk_depthwise.bias
        mixed = mixed + (rows.unflatten(-1, (-1, 1, layer.head_dim)) @ getattr(layer, f"products_{j}")).flatten(2)
    query, key = (
        part.unflatten(-1, (-1, layer.head_dim)) for part in mixed.split([p.shape[-1] for p in projected], -1)
    )
    late, bias = layer.v_proj_delayed(hidden_states), layer.v_proj_delayed.bias
    late = _shifted(late, layer.one_late) if bias is None else _shifted(late - bias, layer.one_late) + bias
    value = torch.cat((layer.v_proj_current(hidden_states), late), -1)
    return query + query_rest, key + key_rest, value.unflatten(-1, (-1, layer.head_dim))


def _shifted(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    _, position, cache_layer = mixing(x)
    rows: torch.Tensor = short_conv(x, taps, None, position, cache_layer)
    return rows


def _blend(x: torch.Tensor, before: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    return x * share + before * (1.0 - share)


def _rwkv(layer: Any, hidden: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
    """RWKV-4 (Peng et al. 2023): a weighted mean of all values so far, and of this one by a weight of its own.

    Weights are not divided by the largest: keys above 88 overflow.
    """
    before = _shifted(hidden, layer.one_late)
    key, values, receptance = (
        getattr(layer, name)(_blend(hidden, before, getattr(layer, f"time_mix_{name}")))
        for name in ("key", "value", "receptance")
    )
    weight = torch.exp(key.float())
    late = _shifted(torch.cat((weight * values, weight), -1), layer.both_late)
    _, position, cache_layer = mixing(late)
    ones = torch.ones_like(late[..., :1])
    held = selective_scan(late, torch.ones_like(late), layer.rates, ones, ones, position, cache_layer)
    width = values.shape[-1]
    own = weight * torch.exp(layer.time_first.float())
    mean = (held[..., :width] + own * values) / (held[..., width:] + own)
    return layer.output(torch.sigmoid(receptance) * mean), None


def _rwkv_feed_forward(layer: Any, hidden: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
    before = _shifted(hidden, layer.one_late)
    key = torch.square(torch.relu(layer.key(_blend(hidden, before, layer.time_mix_key))))
    receptance = torch.sigmoid(layer.receptance(_blend(hidden, before, layer.time_mix_receptance)))
    return receptance * layer.value(key), None


def _keep_one_late(layer: Any, name: str, channels: int) -> None:
    layer.register_buffer(name, torch.tensor([1.0, 0.0]).repeat(channels, 1, 1), persistent=False)


def _prepare_rwkv(layer: Any) -> None:
    _keep_one_late(layer, "one_late", layer.key.in_features)
    if hasattr(layer, "time_decay"):
        rates = -value(layer.time_decay).detach().float().exp()
        _keep_one_late(layer, "both_late", 2 * len(rates))
        layer.register_buffer("rates", torch.cat((rates, rates))[None], persistent=False)


def _prepare_zaya(layer: Any) -> None:
    for name in ("conv_qk_depthwise", "conv_qk_grouped"):
        load_all(getattr(layer, name))
    depthwise, grouped = layer.conv_qk_depthwise.weight.data, layer.conv_qk_grouped.weight.data
    width = grouped.shape[2]
    for j in range(width):  # what the inner convolution looks at for the token j before, and the outer one makes of it
        layer.register_buffer(f"taps_{j}", functional.pad(depthwise, (0, j)), persistent=False)
        product = grouped[:, :, width - 1 - j].unflatten(0, (-1, layer.head_dim)).transpose(1, 2)
        layer.register_buffer(f"products_{j}", product.contiguous(), persistent=False)
    _keep_one_late(layer, "one_late", layer.v_proj_delayed.out_features)


def _prepare_griffin(layer: Any) -> None:
    load_all(layer.conv_1d)
    load_all(layer.rg_lru)
    layer.rg_lru.register_buffer("rates", torch.ones(1, layer.lru_width), persistent=False)


def _prepare_conv(layer: Any) -> None:
    load_all(layer.conv)  # small, and read without being called


_OWN: dict[str, tuple[Callable[..., Any], Callable[[Any], None] | None]] = {
    "Lfm2MoeShortConv": (_lfm2, _prepare_conv),
    "Lfm2ShortConv": (_lfm2, _prepare_conv),
    "Lfm3ShortConv": (_lfm2, _prepare_conv),
    "MiniMaxLightningAttention": (_lightning, None),
    "RecurrentGemmaRecurrentBlock": (_griffin, _prepare_griffin),
    "RwkvFeedForward": (_rwkv_feed_forward, _prepare_rwkv),
    "RwkvSelfAttention": (_rwkv, _prepare_rwkv),
    "xLSTMBackend": (_mlstm, None),
    "ZayaCCAProjection": (_zaya, _prepare_zaya),
}


def _chosen(layer: Any, original: Callable[..., Any], ours: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not attends_here():
        return original(*args, **kwargs)
    with mixing_layer(layer):
        return ours(layer, *args, **kwargs)


def mix_by_ours(model: nn.Module) -> None:
    """Makes such layers use the cache when the model attends through one, in place; otherwise it runs as before."""
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
