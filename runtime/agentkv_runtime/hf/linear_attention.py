"""Linear attention with decay, and the gated delta rule: `agentkv::linear_attention`.

A state S `[k_dim, v_dim]` for each head goes from token to token (Mamba-2, Dao and Gu 2024; gated delta networks, Yang
et al. 2024):

    S(t) = exp(decay(t)) S(t - 1) + k(t) u(t)^T,   out(t) = S(t)^T q(t)

with u = v, or by the delta rule u(t) = beta(t) (v(t) - exp(decay(t)) S(t - 1)^T k(t)).
"""

from __future__ import annotations

import torch

from agentkv_runtime.hf.op import active

__all__ = ["STATE_WINDOW", "linear_attention"]

STATE_WINDOW = 65
"""Positions that the CPU's layer looks back: a block of 64, and the state behind the one before."""

_LIBRARY = torch.library.Library("agentkv", "FRAGMENT")


def _check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor | None,
    position: torch.Tensor,
) -> None:
    torch._check(
        q.dim() == 4 and q.shape == k.shape and v.dim() == 4 and v.shape[:3] == k.shape[:3] and q.shape[0] == 1,
        lambda: (
            f"linear_attention takes q and k [1, T, H, K] and v [1, T, H, V], not {tuple(q.shape)},"
            f" {tuple(k.shape)} and {tuple(v.shape)}"
        ),
    )
    for each in (decay, beta):
        torch._check(
            each is None or each.shape == v.shape[:3],
            lambda each=each: f"decay and beta are [1, T, H], not {tuple(each.shape)}",
        )
    torch._check(
        position.dim() == 1 and position.dtype == torch.int64 and position.shape[0] == q.shape[1],
        lambda: f"position must be int64, one for each row, not {position.dtype} {tuple(position.shape)}",
    )


def _eager(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor | None,
    position: torch.Tensor,
    layer_id: int,
) -> torch.Tensor:
    _check(q, k, v, decay, beta, position)
    return active("linear_attention").attend_linear(layer_id, q, k, v, decay, beta, position)


def _fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor | None,
    position: torch.Tensor,
    layer_id: int,
) -> torch.Tensor:
    del layer_id
    _check(q, k, v, decay, beta, position)
    return torch.empty(v.shape, dtype=v.dtype, device=v.device)


_LIBRARY.define(
    "linear_attention(Tensor q, Tensor k, Tensor v, Tensor decay, Tensor? beta, Tensor position, int layer_id)"
    " -> Tensor"
)
_LIBRARY.impl("linear_attention", _eager, "CompositeExplicitAutograd")
torch.library.register_fake("agentkv::linear_attention", _fake, lib=_LIBRARY)

# q and k [1, T, H, K], v [1, T, H, V], decay (a logarithm) and beta [1, T, H], position [T] int64 -> [1, T, H, V].
linear_attention = torch.ops.agentkv.linear_attention.default
