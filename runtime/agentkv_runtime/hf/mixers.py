"""Replacements of transformers' functions that mix tokens otherwise than by attention.

Models with such layers call a few functions of their module: a short convolution, and the scan of a state. Ours replace
them when the model attends through a cache; the rest of the layer stays.
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
from agentkv_runtime.hf.deferred import load_all, value
from agentkv_runtime.hf.linear_attention import linear_attention
from agentkv_runtime.hf.selective_scan import selective_scan

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


class UnitNorm(nn.Module):
    """Scales rows to length `scale`; an RMSNorm with a constant weight."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Buffer(torch.full((width,), scale * width**-0.5), persistent=False)
        self.eps = 1e-6 / width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x `[..., width]`."""
        return self.weight * (x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + self.eps))


def _delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query and key `[1, T, G, K]`, value `[1, T, H, V]`, g `[1, T, H]` or `[1, T, H, K]`, beta `[1, T, H]` ->
    `[1, T, H, V]`."""
    dtype = query.dtype
    query, key, value, g, beta = (each.float() for each in (query, key, value, g, beta))
    mixer, position, layer = mixing(key)
    if use_qk_l2norm_in_kernel:
        query, key = mixer.query_unit_norm(query), mixer.key_unit_norm(key)
    else:
        query = query * query.shape[-1] ** -0.5
    return linear_attention(query, key, value, g, beta, True, None, position, layer).to(dtype), None


def _time_steps(
    dt: torch.Tensor, bias: torch.Tensor | None, softplus: bool, limit: tuple[float, float] = (0.0, float("inf"))
) -> torch.Tensor:
    if bias is not None:
        dt = dt + bias.to(dt.dtype)
    if softplus:
        dt = functional.softplus(dt)
    if limit == (0.0, float("inf")) and softplus:
        return dt.float()
    return torch.clamp(dt, min=limit[0], max=limit[1] if limit[1] < float("inf") else None).float()


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
    steps = _time_steps(dt, dt_bias, dt_softplus, dt_limit)
    x, keys, queries = (each.float() for each in (hidden_states, B, C))
    mixer, position, layer = mixing(keys)
    skip = None if D is None else mixer.D.float()  # as the layer has it: a constant of the program
    out: torch.Tensor = linear_attention(queries, keys, x, A.float() * steps, steps, False, skip, position, layer)
    return out


def _mamba_scan(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    **_: Any,
) -> torch.Tensor:
    """hidden_states, dt and z `[1, C, T]`, A `[C, N]`, B and C `[1, N, T]`, D `[C]` -> `[1, C, T]`."""
    del A  # the layer's rates are a constant of the program
    x, dt, b, c = (each.transpose(1, 2).float() for each in (hidden_states, dt, B, C))
    steps = _time_steps(dt, delta_bias, delta_softplus)
    mixer, position, layer = mixing(x)
    out = selective_scan(x * steps, steps, next(mixer.rates), b, c, position, layer)
    if D is not None:
        out = out + x * D
    if z is not None:
        out = out * functional.silu(z.transpose(1, 2).float())
    columns: torch.Tensor = out.transpose(1, 2).to(hidden_states.dtype)
    return columns


_OURS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _causal_conv1d,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
    "mamba2_chunk_scan": _mamba2_scan,
    "mamba_selective_scan": _mamba_scan,
}


def _dispatching(ours: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs) if attends_here() else original(*args, **kwargs)

    call.__dict__["agentkv"] = True
    return call


def _in_layer(mixer: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    mixer.rates = iter([buffer for name, buffer in mixer.named_buffers(recurse=False) if name.startswith(_RATES)])
    with mixing_layer(mixer):
        return original(*args, **kwargs)


_RATES = "scan_rates_"


class _Columns:
    """Replaces a layer's weight; its product with columns `[1, C, T]` runs the layer."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer

    def __matmul__(self, columns: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self._layer(columns.transpose(1, 2))
        return rows.transpose(1, 2)


class _WeightAlone(nn.Module):
    """A linear layer whose weight and bias a model uses directly; it can still be quantised and lowered like others."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.bias = None if layer.bias is None else value(layer.bias)
        self.layer = layer
        layer.bias = None

    @property
    def weight(self) -> _Columns:
        return _Columns(self.layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out if self.bias is None else out + self.bias


def _keep_rates(mixer: Any) -> None:
    """Computes the rates `[N, C]` of a layer's scans once, as buffers, which become constants of a program."""
    rates = -value(mixer.A_log).float().exp()  # [C, N], or of each head
    for i, each in enumerate(rates if rates.dim() == 3 else rates[None]):
        mixer.register_buffer(f"{_RATES}{i}", each.T.contiguous(), persistent=False)


def mix_here(model: nn.Module) -> None:
    """Makes a model's mixers use the cache when it attends through one, in place; otherwise it runs as before."""
    for module in model.modules():
        if not hasattr(module, "conv1d") or not hasattr(module, "layer_idx") or "forward" in vars(module):
            continue
        code = sys.modules[type(module).__module__]
        for name, ours in _OURS.items():
            original = vars(code).get(name)
            if original is not None and not hasattr(original, "agentkv"):
                setattr(code, name, _dispatching(ours, original))
        load_all(module.conv1d)  # type: ignore[arg-type]  # small, and read without being called
        if hasattr(module, "dt_proj"):
            module.dt_proj = _WeightAlone(module.dt_proj)
        width = getattr(module, "head_k_dim", None) or getattr(module, "head_dim", None)
        if isinstance(width, int):
            module.query_unit_norm = UnitNorm(width, width**-0.5)
            module.key_unit_norm = UnitNorm(width, 1.0)
        if "mamba_selective_scan" in vars(code):
            _keep_rates(module)
        module.forward = partial(_in_layer, module, module.forward)
