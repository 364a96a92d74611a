"""Ops of ours around attention: each output row follows from its own input row, in one fixed order of operations.

Named ops survive decomposition, so that the partitioner can hand them to the delegate together with the attention
that they feed.
"""

from __future__ import annotations

import torch

__all__ = ["rms_norm", "rope", "rope_table"]

_LIBRARY = torch.library.Library("agentkv", "FRAGMENT")


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def _rms_norm_fake(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _rope_table(position: torch.Tensor, inv_freq: torch.Tensor, scaling: float) -> torch.Tensor:
    angles = position.float()[:, None] * inv_freq[None, :]
    return torch.cat((angles.cos() * scaling, angles.sin() * scaling), dim=-1)


def _rope_table_fake(position: torch.Tensor, inv_freq: torch.Tensor, scaling: float) -> torch.Tensor:
    return inv_freq.new_empty((position.shape[0], 2 * inv_freq.shape[0]))


def _rope(x: torch.Tensor, table: torch.Tensor, interleaved: bool) -> torch.Tensor:
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
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


for _schema, _kernel, _fake in (
    ("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", _rms_norm, _rms_norm_fake),
    ("rope_table(Tensor position, Tensor inv_freq, float scaling) -> Tensor", _rope_table, _rope_table_fake),
    ("rope(Tensor x, Tensor table, bool interleaved) -> Tensor", _rope, _rope_fake),
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
