"""Short causal convolutions over the tokens of a branch: `agentkv::short_conv` (LFM2, 2025).

A row needs the inputs of the tokens before it. The cache stores them like keys, in a layer with a window of the
convolution's width, so that forks, rollbacks and all other operations on branches apply to them as to keys.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from agentkv_runtime.folder.metadata import Kept, LayerShape
from agentkv_runtime.hf.op import active

__all__ = ["as_heads", "conv_shape", "short_conv", "sum_of_taps"]

_WIDEST = 1024  # so that threads share a row

_LIBRARY = torch.library.Library("agentkv", "FRAGMENT")


def conv_shape(channels: int) -> LayerShape:
    """Shape of a convolution's cache entry per token: the input, cut into rows of equal width.

    Raises ValueError for a number of channels that 8 does not divide.
    """
    if channels % 8:
        raise ValueError(f"a convolution of {channels} channels: 8 must divide them")
    heads = next(n for n in range(1, channels) if channels % (8 * n) == 0 and channels // n <= _WIDEST)
    return LayerShape(heads, channels // heads, channels // heads, Kept.INPUTS)


def as_heads(x: torch.Tensor) -> torch.Tensor:
    """x `[1, T, C]` in the cache's shape, `[1, heads, T, C / heads]`."""
    shape = conv_shape(x.shape[2])
    heads: torch.Tensor = x.unflatten(2, (shape.n_kv_heads, shape.k_dim))
    return heads.transpose(1, 2)


def sum_of_taps(tap: Callable[[int], torch.Tensor], weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Convolution `[T, C]` with weight `[C, 1, W]`; `tap(j)` `[T, C]` is each row's input j positions before, or 0."""
    width = weight.shape[2]
    out = tap(width - 1) * weight[:, 0, 0]
    for j in reversed(range(width - 1)):
        out = out + tap(j) * weight[:, 0, width - 1 - j]
    total: torch.Tensor = out if bias is None else out + bias
    return total


def _check(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, position: torch.Tensor) -> None:
    torch._check(
        x.dim() == 3 and x.shape[0] == 1 and weight.dim() == 3 and weight.shape[:2] == (x.shape[2], 1),
        lambda: f"short_conv takes x [1, T, C] and weight [C, 1, W], not {tuple(x.shape)} and {tuple(weight.shape)}",
    )
    torch._check(
        bias is None or bias.shape == weight.shape[:1],
        lambda: f"short_conv takes bias [C], not {None if bias is None else tuple(bias.shape)}",
    )
    torch._check(
        position.dim() == 1 and position.dtype == torch.int64 and position.shape[0] == x.shape[1],
        lambda: f"position must be int64, one for each row, not {position.dtype} {tuple(position.shape)}",
    )


def _eager(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, position: torch.Tensor, layer_id: int
) -> torch.Tensor:
    _check(x, weight, bias, position)
    return active("short_conv").convolve(layer_id, x, weight, bias, position).to(x.dtype)


def _fake(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, position: torch.Tensor, layer_id: int
) -> torch.Tensor:
    del layer_id
    _check(x, weight, bias, position)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


_LIBRARY.define("short_conv(Tensor x, Tensor weight, Tensor? bias, Tensor position, int layer_id) -> Tensor")
_LIBRARY.impl("short_conv", _eager, "CompositeExplicitAutograd")
torch.library.register_fake("agentkv::short_conv", _fake, lib=_LIBRARY)

# x [1, T, C], weight [C, 1, W], bias [C], position [T] int64 -> [1, T, C]: each channel's weights times its last W
# inputs, the newest last, as far as the row's sequence has them.
short_conv = torch.ops.agentkv.short_conv.default
