"""Lowering of ops that only move elements."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from agentkv_runtime.export.mlx.builder import GraphBuilder, Value, refusal, sizes_of
from agentkv_runtime.export.mlx.graph import INT64_MAX, Opcode

__all__ = ["SHAPES"]


def _source(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    return b.value(args[0])


def _source_shape(node: fx.Node) -> Sequence[Any]:
    args: Any = node.args
    shape: Sequence[Any] = args[0].meta["val"].shape
    return shape


def _rank(node: fx.Node) -> int:
    return len(_source_shape(node))


def _same(b: GraphBuilder, node: fx.Node) -> Value:
    return _source(b, node)


def _reshape(b: GraphBuilder, node: fx.Node) -> Value:
    return _reshaped(b, _source(b, node), node, sizes_of(node))


def _reshaped(b: GraphBuilder, value: Value, node: fx.Node, sizes: Sequence[int]) -> Value:
    if sizes.count(-1) > 1:
        raise refusal(node, f"shape {list(node.meta['val'].shape)} has several sizes that differ from call to call")
    return b.emit(Opcode.RESHAPE, (value,), sizes, dtype=value.dtype)


def _permute(b: GraphBuilder, node: fx.Node) -> Value:
    axes: Any = node.args[1]
    value = _source(b, node)
    return b.emit(Opcode.TRANSPOSE, (value,), [axis % _rank(node) for axis in axes], dtype=value.dtype)


def _transpose(b: GraphBuilder, node: fx.Node) -> Value:
    rank = _rank(node)
    axes = list(range(rank))
    given: Any = node.args[1:] or (0, rank - 1)
    first, second = (axis % rank for axis in given)
    axes[first], axes[second] = second, first
    value = _source(b, node)
    return b.emit(Opcode.TRANSPOSE, (value,), axes, dtype=value.dtype)


def _bound(node: fx.Node, axis: int, bound: Any) -> int:
    """Bound of a slice counted from the front; INT64_MAX for an open end."""
    size = _source_shape(node)[axis]
    if isinstance(bound, fx.Node):
        if str(bound.meta["val"]) == str(size):
            return INT64_MAX
        if str(-bound.meta["val"]) == str(size):
            return 0
    if not isinstance(bound, int):
        raise refusal(node, f"it slices at {bound}, which differs from call to call")
    if bound >= 0:
        return bound
    if not isinstance(size, int):
        raise refusal(node, f"it counts {-bound} from the end of a size that differs from call to call")
    return max(bound + size, 0)


def _slice(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = (*node.args, *(None,) * 5)
    axis = (args[1] or 0) % _rank(node)
    start = _bound(node, axis, args[2] or 0)
    end = _bound(node, axis, INT64_MAX if args[3] is None else args[3])
    value = _source(b, node)
    return b.emit(Opcode.SLICE, (value,), (axis, start, end, args[4] or 1), dtype=value.dtype)


def _select(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    axis = args[1] % _rank(node)
    start = _bound(node, axis, args[2])
    value = _source(b, node)
    piece = b.emit(Opcode.SLICE, (value,), (axis, start, start + 1, 1), dtype=value.dtype)
    return _reshaped(b, piece, node, sizes_of(node))


def _split(b: GraphBuilder, node: fx.Node) -> list[Value]:
    args: Any = (*node.args, 0)
    sizes, axis = args[1], args[2] % _rank(node)
    if any(not isinstance(size, int) for size in sizes):
        raise refusal(node, "the sizes of the pieces differ from call to call")
    value = _source(b, node)
    pieces, at = [], 0
    for size in sizes:
        pieces.append(b.emit(Opcode.SLICE, (value,), (axis, at, at + size, 1), dtype=value.dtype))
        at += size
    return pieces


def _getitem(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    index: int = args[1]
    return b.several(args[0])[index]


def _cat(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = (*node.args, 0)
    result = node.meta["val"]
    pieces = [b.cast(b.value(arg), result.dtype) for arg in args[0]]
    return b.emit(Opcode.CONCAT, pieces, (args[1] % result.dim(),), dtype=result.dtype)


def _expand(b: GraphBuilder, node: fx.Node) -> Value:
    source, result = _source_shape(node), node.meta["val"].shape
    sizes: list[int] = []
    for axis, size in enumerate(result, start=len(source) - len(result)):
        if isinstance(size, int):
            sizes.append(size)
        elif axis >= 0 and str(source[axis]) == str(size):
            sizes.append(-1)
        else:
            raise refusal(node, "it repeats a row as often as the call has rows")
    value = _source(b, node)
    return b.emit(Opcode.BROADCAST, (value,), sizes, dtype=value.dtype)


SHAPES: dict[str, Callable[[GraphBuilder, fx.Node], Value | list[Value] | None]] = {
    **dict.fromkeys(
        (
            "aten.alias_copy.default",
            "aten.clone.default",
            "aten.detach_copy.default",
            "aten.lift_fresh_copy.default",
            "dim_order_ops._clone_dim_order.default",
        ),
        _same,
    ),
    **dict.fromkeys(
        (
            "aten.view_copy.default",
            "aten.unsqueeze_copy.default",
            "aten.squeeze_copy.dim",
            "aten.squeeze_copy.dims",
        ),
        _reshape,
    ),
    "aten.permute_copy.default": _permute,
    "aten.transpose_copy.int": _transpose,
    "aten.t_copy.default": _transpose,
    "aten.slice_copy.Tensor": _slice,
    "aten.select_copy.int": _select,
    "aten.split_with_sizes_copy.default": _split,
    operator.getitem.__name__: _getitem,
    "aten.cat.default": _cat,
    "aten.expand_copy.default": _expand,
}
