"""Lowering of products, tables, norms, rotation and attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from agentkv_runtime.export.mlx.builder import GraphBuilder, Value, refusal
from agentkv_runtime.export.mlx.graph import DTYPES, Opcode

__all__ = ["LAYERS"]

_ROPE_TABLE = "agentkv.rope_table.default"
_ATTEND_DEFAULTS = (0, 0, 0.0, None, None, True)
"""Defaults of update_and_attend: window, chunk, cap, sink_scores, slopes, writes."""


def _optional(b: GraphBuilder, args: Sequence[Any], index: int) -> Value | None:
    return b.value(args[index]) if len(args) > index and args[index] is not None else None


def _dtype(node: fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def _linear(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    return b.emit(Opcode.LINEAR, (b.value(args[0]), b.value(args[1]), _optional(b, args, 2)), dtype=_dtype(node))


def _matmul(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    return b.emit(Opcode.MATMUL, [b.value(arg) for arg in args], dtype=_dtype(node))


def _addmm(b: GraphBuilder, node: fx.Node) -> Value:
    if any(node.kwargs.get(name, 1) != 1 for name in ("alpha", "beta")):
        raise refusal(node, "it scales its parts")
    args: Any = node.args
    bias, x, y = (b.value(arg) for arg in args)
    product = b.emit(Opcode.MATMUL, (x, y), dtype=_dtype(node))
    return b.emit(Opcode.ADD, (product, bias), dtype=_dtype(node))


def _affine_linear(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    x, packed, scales, biases = (b.value(arg) for arg in args[:4])
    return b.emit(
        Opcode.AFFINE_LINEAR, (x, packed, scales, biases, _optional(b, args, 4)), args[5:7], dtype=_dtype(node)
    )


def _affine_embedding(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    return b.emit(Opcode.AFFINE_EMBEDDING, [b.value(arg) for arg in args[:4]], args[4:6], dtype=_dtype(node))


def _embedding(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    return b.emit(Opcode.EMBEDDING, [b.value(arg) for arg in args[:2]], dtype=_dtype(node))


def _index_select(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    x, axis, indices = args
    rank = x.meta["val"].dim()
    return b.emit(Opcode.TAKE, (b.value(x), b.value(indices)), (axis % rank,), dtype=_dtype(node))


def _index(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    x, indices = args
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1 or given[0][1].meta["val"].dtype not in (torch.int64, torch.int32):
        raise refusal(node, "only one dimension can be indexed, and by integers")
    axis, index = given[0]
    return b.emit(Opcode.TAKE, (b.value(x), b.value(index)), (axis,), dtype=_dtype(node))


def _rms_norm(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    x, weight, eps = args
    return b.emit(Opcode.RMS_NORM, (b.value(x), b.value(weight)), (), (eps,), dtype=_dtype(node))


def _layer_norm(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    if len(args[1]) != 1:
        raise refusal(node, f"it normalises {len(args[1])} dimensions, not the last one")
    eps = args[4] if len(args) > 4 else 1e-5
    norm = (b.value(args[0]), _optional(b, args, 2), _optional(b, args, 3))
    return b.emit(Opcode.LAYER_NORM, norm, (), (eps,), dtype=_dtype(node))


def _rope_table(b: GraphBuilder, node: fx.Node) -> None:
    """Emits nothing, as ropes take the table's arguments instead of the table."""
    del b
    for user in node.users:
        if getattr(user.target, "__name__", "") != "agentkv.rope.default":
            raise refusal(node, f"{user} uses the table of angles itself")


def _rope(b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = node.args
    x, table, interleaved = args
    position, inv_freq, scaling = table.args
    turned = (b.value(x), b.value(position), b.value(inv_freq))
    return b.emit(Opcode.ROPE, turned, (int(interleaved),), (scaling,), dtype=_dtype(node))


def _update_and_attend(b: GraphBuilder, node: fx.Node) -> Value:
    given: Any = node.args
    args: list[Any] = [*given, *_ATTEND_DEFAULTS[len(given) - 7 :]]
    q, k, v, position, layer, scale, out_dtype, window, chunk, cap, sink_scores, slopes, writes = args
    if not b.is_input(b.value(position)):
        raise refusal(node, "its positions are computed, not given")
    values: list[Value | None] = [b.value(arg) for arg in (q, k, v, position)]
    if sink_scores is not None or slopes is not None:
        values += [_optional(b, args, 10), _optional(b, args, 11)]
    ints = [layer, window, DTYPES[out_dtype]]
    if chunk or not writes:
        ints += [chunk, int(not writes)]
    return b.emit(Opcode.UPDATE_AND_ATTEND, values, ints, (scale, cap) if cap else (scale,), dtype=out_dtype)


LAYERS: dict[str, Callable[[GraphBuilder, fx.Node], Value | list[Value] | None]] = {
    "aten.linear.default": _linear,
    "aten.mm.default": _matmul,
    "aten.bmm.default": _matmul,
    "aten.matmul.default": _matmul,
    "aten.addmm.default": _addmm,
    "aten.embedding.default": _embedding,
    "aten.index_select.default": _index_select,
    "aten.index.Tensor": _index,
    "aten.layer_norm.default": _layer_norm,
    "agentkv.affine_linear.default": _affine_linear,
    "agentkv.affine_embedding.default": _affine_embedding,
    "agentkv.rms_norm.default": _rms_norm,
    _ROPE_TABLE: _rope_table,
    "agentkv.rope.default": _rope,
    "agentkv.update_and_attend.default": _update_and_attend,
}
