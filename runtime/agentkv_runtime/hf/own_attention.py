"""Attention layers that do not use transformers' attention interface, changed to use it.

Each entry is our version of a layer's method, and replaces it when the model attends through agentkv. Loading a model
checks that both give the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from agentkv_runtime.hf.attention import agentkv_attention, attends_here

__all__ = ["ask_for_attention"]

Rows = torch.Tensor
"""`[1, H, T, D]`."""


def _attended(layer: Any, query: Rows, key: Rows, value: Rows, scale: float, **options: Any) -> Rows:
    """agentkv's attention, `[1, H, T, D]`."""
    out, _ = agentkv_attention(layer, query, key, value, None, scaling=scale, **options)
    return out.transpose(1, 2)


def _side_by_side(rows: Rows) -> torch.Tensor:
    """The heads of each token concatenated, `[1, T, H D]`."""
    return rows.transpose(1, 2).flatten(2)


def _heads(x: torch.Tensor, heads: int) -> Rows:
    rows: Rows = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    return rows


def _scaled_down(layer: Any, query: Rows, key: Rows, value: Rows, *_: Any) -> tuple[Rows, None]:
    """Attention of GPT-J and CodeGen."""
    return _attended(layer, query, key, value, 1.0 / float(layer.scale_attn)), None


def _gpt_neo(layer: Any, query: Rows, key: Rows, value: Rows, *_: Any) -> tuple[Rows, None]:
    """Attention of GPT-Neo: scores are not scaled; some layers have a window."""
    window = int(layer.config.window_size) if layer.attention_type == "local" else None
    return _attended(layer, query, key, value, 1.0, sliding_window=window), None


def _gpt_neox_japanese(layer: Any, query: Rows, key: Rows, value: Rows, *_: Any) -> tuple[Rows, None]:
    return _attended(layer, query, key, value, 1.0 / float(layer.norm_factor)), None


def _openai_gpt(layer: Any, query: Rows, key: torch.Tensor, value: Rows, *_: Any) -> list[Rows]:
    """Attention of OpenAI GPT, with key `[1, H, D, T]`."""
    scale = value.shape[-1] ** -0.5 if layer.scale else 1.0
    return [_attended(layer, query, key.transpose(2, 3), value, scale)]


def _four_projections(layer: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
    """Attention of decoders like BART's."""
    query, key, value = (
        _heads(projection(hidden_states), layer.num_heads) for projection in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    return layer.out_proj(_side_by_side(_attended(layer, query, key, value, float(layer.scaling)))), None


def _three_projections(layer: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
    """Attention of decoders like BERT's."""
    query, key, value = (
        _heads(projection(hidden_states), layer.num_attention_heads)
        for projection in (layer.query, layer.key, layer.value)
    )
    return _side_by_side(_attended(layer, query, key, value, layer.attention_head_size**-0.5)), None


def _bloom(layer: Any, hidden_states: torch.Tensor, residual: torch.Tensor, *_: Any, **__: Any) -> Any:
    query, key, value = layer._reshape(layer.query_key_value(hidden_states))
    rows = _attended(layer, query, key, value, float(layer.inv_norm_factor), slopes=layer.slopes)
    return layer.dense(_side_by_side(rows)) + residual, None


def _bloom_slopes(layer: Any, modeling: Any) -> torch.Tensor:
    slopes: torch.Tensor = modeling._get_alibi_slopes(layer.num_heads, torch.device("cpu"))
    return slopes.float()


def _mpt(layer: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
    mixed = layer.Wqkv(hidden_states)
    if layer.clip_qkv:
        mixed = mixed.clamp(min=-layer.clip_qkv, max=layer.clip_qkv)
    query, key, value = (_heads(part, layer.n_heads) for part in mixed.chunk(3, dim=2))
    rows = _attended(layer, query, key, value, float(layer.softmax_scale), slopes=layer.slopes)
    return layer.out_proj(_side_by_side(rows)), None


def _mpt_slopes(layer: Any, modeling: Any) -> torch.Tensor:
    of_two: torch.Tensor = modeling.build_mpt_alibi_tensor(layer.n_heads, 2)  # of the position before, and its own
    return -of_two.flatten(1)[:, 0].float()


def _falcon(layer: Any, hidden_states: torch.Tensor, alibi: Any, *_: Any, **options: Any) -> tuple[torch.Tensor, None]:
    mixed = layer.query_key_value(hidden_states)
    if layer.new_decoder_architecture:
        groups = mixed.unflatten(-1, (layer.num_kv_heads, -1, layer.head_dim))
        parts = groups[..., :-2, :].flatten(2, 3), groups[..., -2, :], groups[..., -1, :]
    else:
        parts = layer._split_heads(mixed)
    query, key, value = (part.transpose(1, 2) for part in parts)
    scale, slopes = layer.head_dim**-0.5, None
    if alibi is None:
        modeling: Any = sys.modules[type(layer).__module__]
        query, key = modeling.apply_rotary_pos_emb(query, key, *options["position_embeddings"])
    else:
        slopes = layer.slopes
    return layer.dense(_side_by_side(_attended(layer, query, key, value, scale, slopes=slopes))), None


def _doge(layer: Any, hidden_states: torch.Tensor, *args: Any, **options: Any) -> tuple[torch.Tensor, None]:
    """Attention of Doge: a score gains a number computed from the value of its position.

    It becomes one more number of keys, with ones in queries. Beyond `keep_window_size` positions the model would hide
    some.
    """
    query, key, value = (
        _heads(projection(hidden_states), projection.out_features // layer.head_dim)
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    query, key = layer.q_norm(query), layer.k_norm(key)
    modeling: Any = sys.modules[type(layer).__module__]
    query, key = modeling.apply_rotary_pos_emb(query, key, *(args[0] if args else options["position_embeddings"]))
    gains = torch.exp(layer.A * functional.softplus(layer.dt_proj(_side_by_side(value)))).transpose(1, 2)[..., None]
    padding = (0, 7)  # to what caches take
    query = torch.cat((query, functional.pad(torch.ones_like(query[..., :1]), padding)), -1)
    key = torch.cat((key, functional.pad(gains / layer.scaling, padding)), -1)
    window = getattr(layer.config, "sliding_window", None)
    return layer.o_proj(_side_by_side(_attended(layer, query, key, value, layer.scaling, sliding_window=window))), None


def _falcon_slopes(layer: Any, modeling: Any) -> torch.Tensor:
    of_two: torch.Tensor = modeling.build_alibi_tensor(torch.ones(1, 2), layer.num_heads, torch.float32)
    return of_two.flatten(1)[:, 1] * float(layer.inv_norm_factor)


_OWN: dict[str, tuple[str, Callable[..., Any]]] = {
    "BloomAttention": ("forward", _bloom),
    "CodeGenAttention": ("_attn", _scaled_down),
    "DogeAttention": ("forward", _doge),
    "FalconAttention": ("forward", _falcon),
    "GPTJAttention": ("_attn", _scaled_down),
    "GPTNeoSelfAttention": ("_attn", _gpt_neo),
    "GPTNeoXJapaneseAttention": ("_attn", _gpt_neox_japanese),
    "MptAttention": ("forward", _mpt),
    "Attention": ("_attn", _openai_gpt),
    "MegatronBertSelfAttention": ("forward", _three_projections),
    "MvpAttention": ("forward", _four_projections),
    "RemBertSelfAttention": ("forward", _three_projections),
    "TrOCRAttention": ("forward", _four_projections),
    "XGLMAttention": ("forward", _four_projections),
}
"""Method and replacement, by the layer's class."""
_SLOPES: dict[str, Callable[[Any, Any], torch.Tensor]] = {
    "BloomAttention": _bloom_slopes,
    "FalconAttention": _falcon_slopes,
    "MptAttention": _mpt_slopes,
}


def ask_for_attention(model: Any) -> None:
    """Changes such layers of a model in place; they compute as before when it does not attend through agentkv."""
    for module in model.modules():
        layer: Any = module
        name = type(layer).__name__
        if name not in _OWN or type(layer).__module__ != type(model).__module__:
            continue
        method, ours = _OWN[name]
        if getattr(layer, "config", None) is None:
            layer.config = model.config
        if name in _SLOPES:
            slopes = _SLOPES[name](layer, sys.modules[type(layer).__module__])
            layer.register_buffer("slopes", slopes, persistent=False)
        setattr(layer, method, partial(_chosen, layer, getattr(layer, method), ours))


def _chosen(
    layer: nn.Module, original: Callable[..., Any], ours: Callable[..., Any], *args: Any, **options: Any
) -> Any:
    return ours(layer, *args, **options) if attends_here() else original(*args, **options)
