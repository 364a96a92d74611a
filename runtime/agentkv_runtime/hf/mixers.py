"""Layers that mix tokens by something else than attention, in the words of transformers' own functions.

Models with such layers call a few functions of their module: a short convolution, and the scan of a state. Where the
model attends through a cache, ours stand in for them, whatever else the layer computes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.activations import ACT2FN

from agentkv_runtime.hf.attention import attends_here, mixing, mixing_layer
from agentkv_runtime.hf.convolution import short_conv
from agentkv_runtime.hf.deferred import load_all
from agentkv_runtime.hf.linear_attention import linear_attention

__all__ = ["mix_here"]


def _causal_conv1d(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, activation: str | None = None, **_: Any
) -> torch.Tensor:
    """x `[1, C, T]`, weight `[C, W]` -> `[1, C, T]`."""
    del weight  # a view of the layer's own, which programs take as it is
    rows = x.transpose(1, 2)
    mixer, position, layer = mixing(rows)
    out = short_conv(rows, mixer.conv1d.weight, bias, position, layer)
    if activation is not None:
        out = ACT2FN[activation](out)
    columns: torch.Tensor = out.transpose(1, 2)
    return columns


def _normalised(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6)


def _gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query and key `[1, T, Hk, K]`, value `[1, T, H, V]`, g and beta `[1, T, H]` -> `[1, T, H, V]`."""
    dtype = query.dtype
    query, key, value, g, beta = (each.float() for each in (query, key, value, g, beta))
    if use_qk_l2norm_in_kernel:
        query, key = _normalised(query), _normalised(key)
    query, key = (_each_head(each, value.shape[2]) for each in (query * query.shape[-1] ** -0.5, key))
    _, position, layer = mixing(key)
    return linear_attention(query, key, value, g, beta, position, layer).to(dtype), None


def _each_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """x `[1, T, G, D]` -> `[1, T, heads, D]`: neighbouring heads share one."""
    return x if x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], dim=2)


def _mamba2_scan(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    chunk_size: int,
    D: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    **_: Any,
) -> torch.Tensor:
    """hidden_states `[1, T, H, P]`, dt `[1, T, H]`, A `[H]`, B and C `[1, T, G, N]`, D `[H]` -> `[1, T, H, P]`."""
    del chunk_size
    if dt_bias is not None:
        dt = dt + dt_bias.to(dt.dtype)
    if dt_softplus:
        dt = functional.softplus(dt)
    dt = torch.clamp(dt, min=dt_limit[0], max=dt_limit[1] if dt_limit[1] < float("inf") else None).float()
    x = hidden_states.float()
    keys, queries = (_each_head(each.float(), x.shape[2]) for each in (B, C))
    _, position, layer = mixing(keys)
    out: torch.Tensor = linear_attention(queries, keys, x * dt[..., None], A.float() * dt, None, position, layer)
    return out if D is None else out + D[..., None] * x


_OURS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _causal_conv1d,
    "torch_chunk_gated_delta_rule": _gated_delta_rule,
    "mamba2_chunk_scan": _mamba2_scan,
}


def _dispatching(ours: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs) if attends_here() else original(*args, **kwargs)

    call.__dict__["agentkv"] = True
    return call


def _in_layer(mixer: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with mixing_layer(mixer):
        return original(*args, **kwargs)


def mix_here(model: nn.Module) -> None:
    """Lets a model's mixers keep what they keep in the cache, where it attends through one; by itself it runs as
    before."""
    for module in model.modules():
        if not hasattr(module, "conv1d") or not hasattr(module, "layer_idx") or "forward" in vars(module):
            continue
        code = sys.modules[type(module).__module__]
        for name, ours in _OURS.items():
            original = vars(code).get(name)
            if original is not None and not hasattr(original, "agentkv"):
                setattr(code, name, _dispatching(ours, original))
        load_all(module.conv1d)  # type: ignore[arg-type]  # small, and read without being called
        module.forward = partial(_in_layer, module, module.forward)
