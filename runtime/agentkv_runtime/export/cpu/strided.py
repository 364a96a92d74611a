"""Values of a region as strided views of the buffers that they came from.

Strides may depend on the number of rows T, so a region is evaluated on meta tensors at two values of T and each number
is read off as `constant + per_token * T`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from agentkv_runtime.export.cpu.blob import Buffer, Extent, View

__all__ = ["SIZES", "RegionError", "Value", "extents_of", "is_heads", "is_rows", "rows_of", "shape_of", "symbols_of"]

SIZES = (101, 211)
"""Two values of T that no static size is likely to equal, least of all both."""


class RegionError(ValueError):
    """A region that is not a list of row instructions over strided views."""


@dataclass
class Value:
    """A tensor of the region, at both sizes of T, as a view of a buffer."""

    buffer: Buffer
    at: tuple[torch.Tensor, torch.Tensor]

    def map(self, function: Callable[[torch.Tensor, int], torch.Tensor]) -> Value:
        """Another view of the same buffer; `function` gets each meta tensor and its index in SIZES."""
        a, b = self.at
        return Value(self.buffer, (function(a, 0), function(b, 1)))

    def narrow(self, start: int, length: int) -> Value:
        """`length` columns of every row, from `start` on."""
        return self.map(lambda tensor, _: tensor.narrow(-1, start, length))


def _extent(a: int, b: int) -> Extent:
    slope, rest = divmod(b - a, SIZES[1] - SIZES[0])
    if rest:
        raise RegionError(f"{a} and {b} at {SIZES} rows do not lie on a line")
    return Extent(a - slope * SIZES[0], slope)


def _size(size: int | torch.SymInt, tokens: int) -> int:
    if isinstance(size, int):
        return size
    expr = size.node.expr
    symbols = list(expr.free_symbols)
    if len(symbols) > 1:
        raise RegionError(f"a size depends on {symbols}: the rows of a region must be one symbol")
    return int(expr.subs({symbol: tokens for symbol in symbols}))


def symbols_of(node: fx.Node) -> set[object]:
    """Symbols in the sizes of a node's value; empty for static sizes."""
    value = node.meta["val"]
    sizes: Any = value.shape if isinstance(value, torch.Tensor) else ()
    return {symbol for size in sizes if not isinstance(size, int) for symbol in size.node.expr.free_symbols}


def shape_of(node: fx.Node, which: int) -> list[int]:
    """Shape of a node's value at T = SIZES[which]."""
    return [_size(size, SIZES[which]) for size in node.meta["val"].shape]


def extents_of(node: fx.Node) -> tuple[Extent, ...]:
    """Shape of a node's value as a function of T."""
    return tuple(_extent(a, b) for a, b in zip(shape_of(node, 0), shape_of(node, 1), strict=True))


def _parted(tensor: torch.Tensor, tokens: int) -> torch.Tensor:
    """Splits a first dimension that is a multiple of `tokens` into tokens and rows per token."""
    rows = tensor.shape[0]
    return tensor.unflatten(0, (tokens, -1)) if rows > tokens and rows % tokens == 0 else tensor


def rows_of(value: Value) -> View:
    """The value as rows of heads. Raises RegionError for other dimensions or strides."""
    a, b = (_parted(tensor, tokens) for tensor, tokens in zip(value.at, SIZES, strict=True))
    token = [i for i in range(a.dim()) if (a.shape[i], b.shape[i]) == SIZES]
    last = a.dim() - 1
    if len(token) != 1 or token[0] == last or a.stride(last) != 1 or b.stride(last) != 1:
        raise RegionError(f"shape {list(a.shape)} with strides {a.stride()} is not rows of contiguous blocks")
    heads = [i for i in range(last) if i != token[0] and (a.shape[i], b.shape[i]) != (1, 1)]
    if len(heads) > 1 or any(a.shape[i] != b.shape[i] for i in heads) or a.shape[last] != b.shape[last]:
        raise RegionError(f"shape {list(a.shape)} has more dimensions than rows, heads and features")
    head_stride = _extent(a.stride(heads[0]), b.stride(heads[0])) if heads else Extent(0, 0)
    return View(
        value.buffer,
        a.shape[heads[0]] if heads else 1,
        a.shape[last],
        _extent(int(a.storage_offset()), int(b.storage_offset())),
        head_stride,
        _extent(a.stride(token[0]), b.stride(token[0])),
    )


def _widths(node: fx.Node) -> list[int | torch.SymInt] | None:
    """Sizes other than 1 before the last one; None unless the value is float32 of 2 or more dimensions."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32 or value.dim() < 2:
        return None
    return [size for size in value.shape[:-1] if not (isinstance(size, int) and size == 1)]


def _is_token(size: int | torch.SymInt) -> bool:
    return not isinstance(size, int) and bool(size.node.expr.as_coeff_Mul()[1].is_symbol)  # or so many for each


def is_rows(node: fx.Node) -> bool:
    """Whether the node's value is float32 `[1, ..., T, width]`: one row per token."""
    sizes = _widths(node)
    return sizes is not None and len(sizes) == 1 and _is_token(sizes[0]) and isinstance(node.meta["val"].shape[-1], int)


def is_heads(node: fx.Node) -> bool:
    """Whether the node's value is rows, or float32 `[T, heads, width]`: one or several rows per token."""
    if is_rows(node):
        return True
    sizes = _widths(node)
    return sizes is not None and len(sizes) == 2 and _is_token(sizes[0]) and isinstance(sizes[1], int)
