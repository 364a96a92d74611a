"""The selective scan of Mamba (Gu and Dao 2023), and other recurrences of single channels (RG-LRU; De et al. 2024):
`agentkv::selective_scan`.

For each channel and each of its states:

    S(t) = exp(decay(t) rate) S(t - 1) + b(t) x(t),   out(t) = the sum over states of c(t) S(t)
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from agentkv_runtime.folder.metadata import Kept, LayerShape
from agentkv_runtime.hf.op import active

__all__ = ["ScanInputs", "scan_shape", "selective_scan"]

_LIBRARY = torch.library.Library("agentkv", "FRAGMENT")


class ScanInputs(NamedTuple):
    """Inputs of a selective scan for T rows."""

    x: torch.Tensor
    """`[1, T, C]`, like `decay`."""
    decay: torch.Tensor
    rates: torch.Tensor
    """`[N, C]`; decay times rate is at most 0."""
    b: torch.Tensor
    """`[1, T, N]`, like `c`."""
    c: torch.Tensor

    def check(self) -> None:
        """Raises RuntimeError for tensors whose shapes do not fit each other."""
        x, b = self.x, self.b
        torch._check(
            x.dim() == 3 and x.shape[0] == 1 and x.shape == self.decay.shape and b.shape == self.c.shape,
            lambda: f"selective_scan takes x and decay [1, T, C], not {tuple(x.shape)} and {tuple(self.decay.shape)}",
        )
        torch._check(
            b.dim() == 3 and b.shape[:2] == x.shape[:2] and self.rates.shape == (b.shape[2], x.shape[2]),
            lambda: f"selective_scan takes b and c [1, T, N] and rates [N, C], not {tuple(b.shape)}",
        )

    def step(self, state: torch.Tensor, t: int) -> torch.Tensor:
        """The state `[N, C]` after row t, from the one before it."""
        return (self.decay[0, t] * self.rates).exp() * state + self.b[0, t, :, None] * self.x[0, t]


def scan_shape(x: torch.Tensor, b: torch.Tensor) -> LayerShape:
    """Shape of the cache entry per token of a scan with these tensors."""
    return LayerShape(1, int(b.shape[2]), int(x.shape[2]), Kept.SCAN)


def _eager(
    x: torch.Tensor,
    decay: torch.Tensor,
    rates: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    position: torch.Tensor,
    layer_id: int,
) -> torch.Tensor:
    inputs = ScanInputs(x, decay, rates, b, c)
    inputs.check()
    return active("selective_scan").scan(layer_id, inputs, position)


def _fake(
    x: torch.Tensor,
    decay: torch.Tensor,
    rates: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    position: torch.Tensor,
    layer_id: int,
) -> torch.Tensor:
    del position, layer_id
    ScanInputs(x, decay, rates, b, c).check()
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


_LIBRARY.define(
    "selective_scan(Tensor x, Tensor decay, Tensor rates, Tensor b, Tensor c, Tensor position, int layer_id) -> Tensor"
)
_LIBRARY.impl("selective_scan", _eager, "CompositeExplicitAutograd")
torch.library.register_fake("agentkv::selective_scan", _fake, lib=_LIBRARY)

# The fields of ScanInputs, position [T] int64 and the cache's layer -> [1, T, C].
selective_scan = torch.ops.agentkv.selective_scan.default
