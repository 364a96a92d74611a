"""Ops of ours around attention: each output row follows from its own input row, in one fixed order of operations.

Named ops survive decomposition, so that the partitioner can hand them to the delegate together with the attention
that they feed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from agentkv_runtime.export.gates import Gate

__all__ = ["gate", "rms_norm", "rope", "rope_table"]

_LIBRARY = torch.library.Library("agentkv", "FRAGMENT")


def _check_norm(x: torch.Tensor, weight: torch.Tensor) -> None:
    torch._check(
        x.dim() > 0 and weight.dim() == 1 and weight.shape[0] == x.shape[-1],
        lambda: f"rms_norm takes x [..., D] and weight [D], not {tuple(x.shape)} and {tuple(weight.shape)}",
    )
    torch._check(weight.dtype == x.dtype, lambda: f"rms_norm takes one dtype, not {x.dtype} and {weight.dtype}")


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    _check_norm(x, weight)
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def _rms_norm_fake(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    _check_norm(x, weight)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _check_table(position: torch.Tensor, inv_freq: torch.Tensor) -> None:
    torch._check(
        position.dim() == 1 and position.dtype == torch.int64,
        lambda: f"rope_table takes position [T] int64, not {tuple(position.shape)} {position.dtype}",
    )
    torch._check(
        inv_freq.dim() == 1 and inv_freq.dtype == torch.float32,
        lambda: f"rope_table takes inv_freq [F] float32, not {tuple(inv_freq.shape)} {inv_freq.dtype}",
    )


def _rope_table(position: torch.Tensor, inv_freq: torch.Tensor, scaling: float) -> torch.Tensor:
    _check_table(position, inv_freq)
    angles = position.float()[:, None] * inv_freq[None, :]
    return torch.cat((angles.cos() * scaling, angles.sin() * scaling), dim=-1)


def _rope_table_fake(position: torch.Tensor, inv_freq: torch.Tensor, scaling: float) -> torch.Tensor:
    _check_table(position, inv_freq)
    return inv_freq.new_empty((position.shape[0], 2 * inv_freq.shape[0]))


def _check_rope(x: torch.Tensor, table: torch.Tensor) -> None:
    torch._check(
        x.dim() == 4 and table.dim() == 2 and table.shape[0] == x.shape[2],
        lambda: f"rope takes x [1, H, T, D] and table [T, 2 F], not {tuple(x.shape)} and {tuple(table.shape)}",
    )
    torch._check(
        table.shape[1] % 2 == 0 and table.shape[1] <= x.shape[3],
        lambda: f"rope cannot turn {table.shape[1]} of {x.shape[3]} dimensions in pairs",
    )


def _rope(x: torch.Tensor, table: torch.Tensor, interleaved: bool) -> torch.Tensor:
    _check_rope(x, table)
    width = table.shape[-1]
    cos, sin = table.chunk(2, dim=-1)
    turned, rest = x[..., :width], x[..., width:]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        pairs = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        a, b = turned.chunk(2, dim=-1)
        pairs = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    return torch.cat((pairs.to(x.dtype), rest), dim=-1)


def _rope_fake(x: torch.Tensor, table: torch.Tensor, interleaved: bool) -> torch.Tensor:
    _check_rope(x, table)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


_GATES: dict[Gate, Callable[[torch.Tensor], torch.Tensor]] = {
    Gate.SILU: functional.silu,
    Gate.TANH_GELU: partial(functional.gelu, approximate="tanh"),
    Gate.SIGMOID: torch.sigmoid,
    Gate.SOFTPLUS: functional.softplus,
}


def _gate(x: torch.Tensor, kind: int) -> torch.Tensor:
    return _GATES[Gate(kind)](x)


def _gate_fake(x: torch.Tensor, kind: int) -> torch.Tensor:
    del kind
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


for _schema, _kernel, _fake in (
    ("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", _rms_norm, _rms_norm_fake),
    ("rope_table(Tensor position, Tensor inv_freq, float scaling) -> Tensor", _rope_table, _rope_table_fake),
    ("rope(Tensor x, Tensor table, bool interleaved) -> Tensor", _rope, _rope_fake),
    ("gate(Tensor x, int kind) -> Tensor", _gate, _gate_fake),
):
    _name = _schema.partition("(")[0]
    _LIBRARY.define(_schema)
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"agentkv::{_name}", _fake, lib=_LIBRARY)

# x [..., D] and weight [D] of one dtype: x / sqrt(mean(x^2) + eps) * weight over the last dimension.
rms_norm = torch.ops.agentkv.rms_norm.default
# position [T] int64 and inv_freq [F] float32 -> [T, 2 F]: F cosines, then F sines, times the scaling.
rope_table = torch.ops.agentkv.rope_table.default
# x [1, H, T, D] and table [T, 2 F], 2 F <= D: turns the pairs (i, i + F), or (2 i, 2 i + 1) when interleaved.
rope = torch.ops.agentkv.rope.default
# x of any shape -> the same: one of Gate.
gate = torch.ops.agentkv.gate.default
