"""Linear attention with decay, and the gated delta rule: `agentkv::linear_attention`.

A state S `[k_dim, v_dim]` for each head of values goes from token to token (Mamba-2, Dao and Gu 2024; lightning
attention, Qin et al. 2024; gated delta networks, Yang et al. 2024; Kimi Linear, 2025: keys fade number by number):

    S(t) = exp(decay(t)) S(t - 1) + k(t) u(t)^T,   out(t) = S(t)^T q(t) + skip v(t)

with u = beta(t) v, or by the delta rule u(t) = beta(t) (v(t) - exp(decay(t)) S(t - 1)^T k(t)).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from agentkv_runtime.folder.metadata import Kept, LayerShape
from agentkv_runtime.hf.op import active

__all__ = ["STATE_WINDOW", "LinearInputs", "linear_attention", "linear_shape"]

STATE_WINDOW = 65
"""Window of the CPU's layer: the 64 positions of a block, and one more for the state after the block before."""

_LIBRARY = torch.library.Library("agentkv", "FRAGMENT")


class LinearInputs(NamedTuple):
    """Inputs of a layer of linear attention for T rows."""

    q: torch.Tensor
    """`[1, T, G, K]`, as k."""
    k: torch.Tensor
    v: torch.Tensor
    """`[1, T, H, V]`: H / G neighbours share a head of keys."""
    decay: torch.Tensor
    """Logarithms of decays, at most 0: `[1, T, H]`, or `[1, T, H, K]` for a decay per number of a key, with G = H."""
    beta: torch.Tensor | None
    """`[1, T, H]`; None for ones."""
    corrects: bool
    """Whether u follows the delta rule."""
    skip: torch.Tensor | None
    """Factor of v in the output, `[H]`; None for 0."""

    def check(self) -> None:
        """Raises RuntimeError for tensors whose shapes do not fit each other."""
        q, k, v = self.q, self.k, self.v
        torch._check(
            q.dim() == 4
            and q.shape == k.shape
            and v.dim() == 4
            and v.shape[:2] == k.shape[:2]
            and q.shape[0] == 1
            and v.shape[2] % k.shape[2] == 0,
            lambda: (
                f"linear_attention takes q and k [1, T, G, K] and v [1, T, H, V], not {tuple(q.shape)},"
                f" {tuple(k.shape)} and {tuple(v.shape)}"
            ),
        )
        decays = (v.shape[:3], k.shape) if k.shape[2] == v.shape[2] else (v.shape[:3],)
        torch._check(
            self.decay.shape in decays and (self.beta is None or self.beta.shape == v.shape[:3]),
            lambda: f"decay and beta are [1, T, H], not {tuple(self.decay.shape)}",
        )
        torch._check(
            self.skip is None or self.skip.shape == v.shape[2:3],
            lambda: f"skip is [H], not {None if self.skip is None else tuple(self.skip.shape)}",
        )

    def for_each_head(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q and k `[T, H, K]`, and decay `[T, H, K]` or `[T, H, 1]`."""
        shared = self.v.shape[2] // self.k.shape[2]
        q, k = (each[0].repeat_interleave(shared, 1) for each in (self.q, self.k))
        return q, k, self.decay[0] if self.decay.dim() == 4 else self.decay[0, ..., None]

    def added(self, t: int, known: torch.Tensor) -> torch.Tensor:
        """u of row t, `[H, V]`; `known` is the decayed state's product with the row's key, `[H, V]`."""
        u = self.v[0, t] - known if self.corrects else self.v[0, t]
        return u if self.beta is None else self.beta[0, t, :, None] * u

    def skipped(self, out: torch.Tensor) -> torch.Tensor:
        """out `[1, T, H, V]` plus `skip` times v."""
        return out if self.skip is None else out + self.skip[:, None] * self.v


def linear_shape(k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> LayerShape:
    """Shape of the cache entry per token of linear attention with these tensors."""
    groups, k_dim = (int(size) for size in k.shape[2:])
    heads, v_dim = (int(size) for size in v.shape[2:])
    return LayerShape(groups, k_dim, v_dim, Kept.GATED_LINEAR if decay.dim() == 4 else Kept.LINEAR, heads // groups)


def _eager(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor | None,
    corrects: bool,
    skip: torch.Tensor | None,
    position: torch.Tensor,
    layer_id: int,
) -> torch.Tensor:
    inputs = LinearInputs(q, k, v, decay, beta, corrects, skip)
    inputs.check()
    return active("linear_attention").attend_linear(layer_id, inputs, position)


def _fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor | None,
    corrects: bool,
    skip: torch.Tensor | None,
    position: torch.Tensor,
    layer_id: int,
) -> torch.Tensor:
    del position, layer_id
    LinearInputs(q, k, v, decay, beta, corrects, skip).check()
    return torch.empty(v.shape, dtype=v.dtype, device=v.device)


_LIBRARY.define(
    "linear_attention(Tensor q, Tensor k, Tensor v, Tensor decay, Tensor? beta, bool corrects, Tensor? skip,"
    " Tensor position, int layer_id) -> Tensor"
)
_LIBRARY.impl("linear_attention", _eager, "CompositeExplicitAutograd")
torch.library.register_fake("agentkv::linear_attention", _fake, lib=_LIBRARY)

# The fields of LinearInputs, position [T] int64 and the cache's layer -> [1, T, H, V].
linear_attention = torch.ops.agentkv.linear_attention.default
