"""Multi-head latent attention with one cached latent and rotated key per token, for all heads together.

Keys and values of all heads are linear in the latent, so queries are mapped to the latent's space, and results of
attention back from it ("absorbed", DeepSeek-V2, 2024).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from agentkv_runtime.hf.deferred import defer, stored

__all__ = ["LatentProjection", "absorb_latents", "is_start"]


class _PerHead(nn.Module):
    """A linear map for each head."""

    def __init__(self, weight: torch.Tensor) -> None:
        """`weight`: `[H, in, out]`."""
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x `[1, H, T, in]` -> `[1, H, T, out]`."""
        return torch.bmm(x[0], self.weight)[None]


class LatentProjection(nn.Module):
    """Replaces `kv_b_proj`, which makes keys and values of a latent, by maps to and from the latent's space."""

    def __init__(self, projection: nn.Linear, key_dim: int, value_dim: int) -> None:
        """`projection` makes, per head, the `key_dim` numbers of the key that are not rotated, then the value."""
        super().__init__()
        weight, rank = projection.weight, projection.in_features
        self.heads, self.key_dim, self.rank = projection.out_features // (key_dim + value_dim), key_dim, rank

        def part(shape: tuple[int, ...], of: Callable[[torch.Tensor], torch.Tensor]) -> nn.Parameter:
            return defer(shape, weight.dtype, lambda: of(stored(weight).view(self.heads, key_dim + value_dim, rank)))

        self.to_latent = _PerHead(part((self.heads, key_dim, rank), lambda each: each[:, :key_dim]))
        self.from_latent = _PerHead(part((self.heads, rank, value_dim), lambda each: each[:, key_dim:].transpose(1, 2)))

    def expand(self, latent: torch.Tensor, rotated: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """latent `[1, 1, T, rank]`, rotated key `[1, 1, T, R]` -> keys `[1, H, T, K + R]`, values `[1, H, T, V]`."""
        eye = torch.eye(self.key_dim, dtype=latent.dtype, device=latent.device)
        up = self.to_latent(eye.expand(1, self.heads, -1, -1)).transpose(2, 3)
        latents = latent.expand(-1, self.heads, -1, -1)
        keys = torch.cat((latents @ up, rotated.expand(-1, self.heads, -1, -1)), dim=-1)
        return keys, self.from_latent(latents)

    def absorbed(self, query: torch.Tensor) -> torch.Tensor:
        """query `[1, H, T, K + R]` -> `[1, H, T, rank + R]`, with equal products over latent and rotated key."""
        plain, rotated = query.split((self.key_dim, query.shape[-1] - self.key_dim), dim=-1)
        return torch.cat((self.to_latent(plain), rotated), dim=-1)


def is_start(values: torch.Tensor, keys: torch.Tensor) -> bool:
    """Whether values are a view of the first numbers of keys."""
    return values is not keys and values.data_ptr() == keys.data_ptr() and values.stride() == keys.stride()


def absorb_latents(model: nn.Module, remember: Callable[[nn.Module, torch.Tensor], bool]) -> None:
    """Makes layers of latent attention pass on their latents instead of keys and values of all heads, in place.

    `remember(module, row)` gets the latent and the rotated key, concatenated, `[1, 1, T, rank + R]`; if it returns
    False, the layer makes keys and values as before.
    """
    for module in model.modules():
        projection = getattr(module, "kv_b_proj", None)
        if not hasattr(module, "expand_kv") or not isinstance(projection, nn.Linear) or projection.bias is not None:
            continue
        latent = LatentProjection(projection, int(module.qk_nope_head_dim), int(module.v_head_dim))
        module.kv_b_proj = latent
        module.expand_kv = _handing_on(module, latent, remember)


def _handing_on(module: Any, projection: LatentProjection, remember: Callable[[nn.Module, torch.Tensor], bool]) -> Any:
    def expand_kv(latent: torch.Tensor, rotated: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        row = torch.cat((latent, rotated), dim=-1)
        return (row, row) if remember(module, row) else projection.expand(latent, rotated)

    return expand_kv
