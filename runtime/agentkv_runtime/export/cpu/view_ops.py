"""Ops that compile to nothing: their results are other views of the same buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from agentkv_runtime.export.cpu.blob import Copy
from agentkv_runtime.export.cpu.compiler import Compiler
from agentkv_runtime.export.cpu.strided import RegionError, Value, rows_of, shape_of

__all__ = ["VIEWS"]


def _same(c: Compiler, _: fx.Node, x: fx.Node, *__: object) -> Value:
    return c.values[x]


def _permute(c: Compiler, _: fx.Node, x: fx.Node, dims: list[int]) -> Value:
    return c.values[x].map(lambda tensor, _: tensor.permute(dims))


def _transpose(c: Compiler, _: fx.Node, x: fx.Node, a: int, b: int) -> Value:
    return c.values[x].map(lambda tensor, _: tensor.transpose(a, b))


def _reshape(c: Compiler, node: fx.Node, x: fx.Node, *_: object) -> Value:
    source = c.values[x]
    try:
        return source.map(lambda tensor, which: tensor.view(shape_of(node, which)))
    except RuntimeError:
        flat = c.new(node)
        dense = source.map(lambda tensor, which: flat.at[which].view(tensor.shape))
        c.emit(Copy(rows_of(source), rows_of(Value(flat.buffer, dense.at))))
        return flat


def _slice(
    c: Compiler, node: fx.Node, x: fx.Node, dim: int = 0, start: Any = None, end: object = None, step: int = 1
) -> Value:
    del end
    start = start or 0
    if step != 1 or not isinstance(start, int):
        raise RegionError(f"{node} slices with a step or from a symbol")
    return c.values[x].map(
        lambda tensor, which: tensor.narrow(dim, start % max(tensor.shape[dim], 1), shape_of(node, which)[dim])
    )


VIEWS: dict[str, Callable[..., Value]] = {
    "aten.alias_copy.default": _same,
    "aten.clone.default": _same,
    "aten.permute_copy.default": _permute,
    "aten.slice_copy.Tensor": _slice,
    "aten.squeeze_copy.dims": _reshape,
    "aten.transpose_copy.int": _transpose,
    "aten.unsqueeze_copy.default": _reshape,
    "aten.view_copy.default": _reshape,
    "dim_order_ops._clone_dim_order.default": _same,
}
