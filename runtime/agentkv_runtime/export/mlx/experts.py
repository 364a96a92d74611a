"""Lowering of mixtures of experts: routers, and products of rows with their chosen experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from agentkv_runtime.export.mlx.builder import GraphBuilder, Value, refusal, sizes_of
from agentkv_runtime.export.mlx.graph import Opcode

__all__ = ["EXPERTS"]


def _optional(b: GraphBuilder, arg: Any) -> Value | None:
    return None if arg is None else b.value(arg)


def _expert_linear(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    x, chosen, weight, bias = args
    values = (b.value(x), b.value(chosen), b.value(weight), _optional(b, bias))
    return b.emit(Opcode.EXPERT_LINEAR, values, dtype=node.meta["val"].dtype)


def _affine_expert_linear(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    values = [*(b.value(arg) for arg in args[:5]), _optional(b, args[5])]
    return b.emit(Opcode.AFFINE_EXPERT_LINEAR, values, args[6:8], dtype=node.meta["val"].dtype)


def _weighted_sum(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    x, weights = args
    dtype = node.meta["val"].dtype
    choices = weights.meta["val"].shape[1]
    column = b.emit(Opcode.RESHAPE, (b.operand(weights, dtype),), (-1, choices, 1), dtype=dtype)
    products = b.emit(Opcode.MUL, (b.operand(x, dtype), column), dtype=dtype)
    return b.emit(Opcode.SUM, (products,), (0, 1), dtype=dtype)


def _top_k(b: GraphBuilder, node: fx.Node) -> list[Value]:
    """Values and indices of the k largest."""
    args: Any = (*node.args, *(-1, True)[len(node.args) - 2 :])
    x, k, axis, largest = args[:4]
    return _chosen(b, b.value(x), axis % x.meta["val"].dim(), k, bool(largest))


def _chosen(b: GraphBuilder, x: Value, axis: int, k: int, largest: bool) -> list[Value]:
    indices = b.emit(Opcode.TOP_K, (x,), (axis, k, int(largest)), dtype=torch.int64)
    return [b.emit(Opcode.TAKE_ALONG, (x, indices), (axis,), dtype=x.dtype), indices]


def _max(b: GraphBuilder, node: fx.Node) -> list[Value]:
    """Value and index of the largest, with or without the reduced dimension."""
    args: Any = node.args
    x, axis = args[:2]
    found = _chosen(b, b.value(x), axis % x.meta["val"].dim(), 1, True)
    if len(args) > 2 and args[2]:
        return found
    sizes = [size if isinstance(size, int) else -1 for size in node.meta["val"][0].shape]
    return [b.emit(Opcode.RESHAPE, (value,), sizes, dtype=value.dtype) for value in found]


def _check_rows(node: fx.Node) -> int:
    """Axis of an op `(x, axis, indices)`. Raises UnsupportedModelError unless there are indices for all rows of x."""
    args: Any = node.args
    x, axis, indices = args[:3]
    axis %= x.meta["val"].dim()
    shapes = [[str(size) for size in each.meta["val"].shape] for each in (x, indices)]
    for shape in shapes:
        del shape[axis]
    if shapes[0] != shapes[1]:
        raise refusal(node, "it indexes some of the rows only")
    return int(axis)


def _gather(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    x, _, indices = args[:3]
    return b.emit(Opcode.TAKE_ALONG, (b.value(x), b.value(indices)), (_check_rows(node),), dtype=node.meta["val"].dtype)


def _scatter(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    x, _, indices, values = args[:4]
    dtype = node.meta["val"].dtype
    if isinstance(values, fx.Node) and sizes_of(values) and sizes_of(values) != sizes_of(indices):
        raise refusal(node, "it puts some of the values only")
    put = (b.value(x), b.value(indices), b.operand(values, dtype))
    return b.emit(Opcode.PUT_ALONG, put, (_check_rows(node),), dtype=dtype)


EXPERTS: dict[str, Callable[[GraphBuilder, fx.Node], Value | list[Value] | None]] = {
    "agentkv.expert_linear.default": _expert_linear,
    "agentkv.affine_expert_linear.default": _affine_expert_linear,
    "agentkv.weighted_sum.default": _weighted_sum,
    "aten.topk.default": _top_k,
    "aten.max.dim": _max,
    "aten.gather.default": _gather,
    "aten.scatter.src": _scatter,
    "aten.scatter.value": _scatter,
}
