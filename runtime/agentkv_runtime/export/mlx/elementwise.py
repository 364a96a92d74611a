"""Lowering of elementwise ops and reductions. Operands are cast to the dtype that torch promotes them to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import fx

from agentkv_runtime.export.mlx.builder import GraphBuilder, Value, refusal
from agentkv_runtime.export.mlx.graph import Opcode

__all__ = ["ELEMENTWISE"]


def _meta(arg: Any) -> Any:
    return arg.meta["val"] if isinstance(arg, fx.Node) else arg


def _unary(opcode: Opcode, b: GraphBuilder, node: fx.Node) -> Value:
    dtype = node.meta["val"].dtype
    return b.emit(opcode, (b.operand(node.args[0], dtype),), dtype=dtype)


def _gelu(b: GraphBuilder, node: fx.Node) -> Value:
    return _unary(Opcode.GELU_TANH if node.kwargs.get("approximate") == "tanh" else Opcode.GELU, b, node)


def _log1p(b: GraphBuilder, node: fx.Node) -> Value:
    dtype = node.meta["val"].dtype
    x = b.emit(Opcode.ADD, (b.operand(node.args[0], dtype), b.scalar(1, dtype)), dtype=dtype)
    return b.emit(Opcode.LOG, (x,), dtype=dtype)


def _expm1(b: GraphBuilder, node: fx.Node) -> Value:
    dtype = node.meta["val"].dtype
    return b.emit(Opcode.SUB, (_unary(Opcode.EXP, b, node), b.scalar(1, dtype)), dtype=dtype)


def _logical_not(b: GraphBuilder, node: fx.Node) -> Value:
    return b.emit(Opcode.LOGICAL_NOT, (b.operand(node.args[0], torch.bool),), dtype=torch.bool)


def _bitwise_not(b: GraphBuilder, node: fx.Node) -> Value:
    if node.meta["val"].dtype != torch.bool:
        raise refusal(node, "it turns the bits of integers")
    return _logical_not(b, node)


def _binary(opcode: Opcode, b: GraphBuilder, node: fx.Node) -> Value:
    dtype = node.meta["val"].dtype
    return b.emit(opcode, [b.operand(arg, dtype) for arg in node.args[:2]], dtype=dtype)


def _sum(opcode: Opcode, b: GraphBuilder, node: fx.Node) -> Value:
    """a + alpha b, or a - alpha b."""
    dtype = node.meta["val"].dtype
    left, right = (b.operand(arg, dtype) for arg in node.args[:2])
    alpha: Any = node.kwargs.get("alpha", 1)
    if alpha != 1:
        right = b.emit(Opcode.MUL, (right, b.scalar(alpha, dtype)), dtype=dtype)
    return b.emit(opcode, (left, right), dtype=dtype)


def _compare(opcode: Opcode, b: GraphBuilder, node: fx.Node) -> Value:
    dtype = torch.result_type(*(_meta(arg) for arg in node.args[:2]))
    return b.emit(opcode, [b.operand(arg, dtype) for arg in node.args[:2]], dtype=torch.bool)


def _pow(b: GraphBuilder, node: fx.Node) -> Value:
    dtype = node.meta["val"].dtype
    base, exponent = node.args
    if exponent == 2:  # exact, and far cheaper than a power
        x = b.operand(base, dtype)
        return b.emit(Opcode.MUL, (x, x), dtype=dtype)
    return _binary(Opcode.POW, b, node)


def _where(b: GraphBuilder, node: fx.Node) -> Value:
    dtype = node.meta["val"].dtype
    condition, *choices = node.args
    return b.emit(
        Opcode.WHERE, [b.operand(condition, torch.bool), *(b.operand(arg, dtype) for arg in choices)], dtype=dtype
    )


def _clamp(b: GraphBuilder, node: fx.Node) -> Value:
    dtype = node.meta["val"].dtype
    x = b.operand(node.args[0], dtype)
    for bound, opcode in zip((*node.args[1:], None), (Opcode.MAXIMUM, Opcode.MINIMUM), strict=False):
        if bound is not None:
            x = b.emit(opcode, (x, b.operand(bound, dtype)), dtype=dtype)
    return x


def _cast(b: GraphBuilder, node: fx.Node) -> Value:
    return b.operand(node.args[0], node.meta["val"].dtype)


def _softmax(b: GraphBuilder, node: fx.Node) -> Value:
    dtype = node.meta["val"].dtype
    axis: Any = node.args[1]
    return b.emit(Opcode.SOFTMAX, (b.operand(node.args[0], dtype),), (axis % node.meta["val"].dim(),), dtype=dtype)


def _reduce(opcode: Opcode, b: GraphBuilder, node: fx.Node) -> Value:
    args: Any = (*node.args, None, None)
    rank = _meta(args[0]).dim()
    axes = sorted({axis % rank for axis in args[1]}) if args[1] else range(rank)
    dtype = node.meta["val"].dtype
    return b.emit(opcode, (b.operand(args[0], dtype),), (int(bool(args[2])), *axes), dtype=dtype)


def _scalar_tensor(b: GraphBuilder, node: fx.Node) -> Value:
    return b.operand(node.args[0], node.meta["val"].dtype)


def _full(b: GraphBuilder, node: fx.Node) -> Value:
    sizes: Any = node.args[0]
    if any(not isinstance(size, int) for size in sizes):
        raise refusal(node, "its size differs from call to call")
    dtype = node.meta["val"].dtype
    value = b.operand(node.args[1], dtype)
    return b.emit(Opcode.BROADCAST, (value,), sizes, dtype=dtype) if sizes else value


def _full_like(b: GraphBuilder, node: fx.Node) -> Value:
    like, number = node.args[:2]
    dtype = node.meta["val"].dtype
    x, value = b.operand(like, _meta(like).dtype), b.operand(number, dtype)
    everywhere = b.emit(Opcode.EQ, (x, x), dtype=torch.bool)  # its values do not matter, its sizes do
    return b.emit(Opcode.WHERE, (everywhere, value, value), dtype=dtype)


_UNARY = {
    "neg": Opcode.NEG,
    "abs": Opcode.ABS,
    "exp": Opcode.EXP,
    "log": Opcode.LOG,
    "sqrt": Opcode.SQRT,
    "rsqrt": Opcode.RSQRT,
    "sin": Opcode.SIN,
    "cos": Opcode.COS,
    "tanh": Opcode.TANH,
    "sigmoid": Opcode.SIGMOID,
    "relu": Opcode.RELU,
    "silu": Opcode.SILU,
    "reciprocal": Opcode.RECIPROCAL,
    "erf": Opcode.ERF,
    "floor": Opcode.FLOOR,
}
_BINARY = {
    "mul.Tensor": Opcode.MUL,
    "mul.Scalar": Opcode.MUL,
    "div.Tensor": Opcode.DIV,
    "div.Scalar": Opcode.DIV,
    "pow.Tensor_Tensor": Opcode.POW,
    "pow.Scalar": Opcode.POW,
    "maximum.default": Opcode.MAXIMUM,
    "minimum.default": Opcode.MINIMUM,
}
_SUMS = {"add": Opcode.ADD, "sub": Opcode.SUB}
_COMPARISONS = {
    "eq": Opcode.EQ,
    "ne": Opcode.NE,
    "lt": Opcode.LT,
    "le": Opcode.LE,
    "gt": Opcode.GT,
    "ge": Opcode.GE,
}
_REDUCTIONS = {
    "mean.dim": Opcode.MEAN,
    "sum.dim_IntList": Opcode.SUM,
    "amax.default": Opcode.MAX,
    "amin.default": Opcode.MIN,
}

ELEMENTWISE: dict[str, Callable[[GraphBuilder, fx.Node], Value | list[Value] | None]] = {
    **{f"aten.{name}.default": partial(_unary, opcode) for name, opcode in _UNARY.items()},
    **{f"aten.{name}": partial(_binary, opcode) for name, opcode in _BINARY.items()},
    **{f"aten.{name}.{kind}": partial(_sum, opcode) for name, opcode in _SUMS.items() for kind in ("Tensor", "Scalar")},
    **{
        f"aten.{name}.{kind}": partial(_compare, opcode)
        for name, opcode in _COMPARISONS.items()
        for kind in ("Tensor", "Scalar")
    },
    **{f"aten.{name}": partial(_reduce, opcode) for name, opcode in _REDUCTIONS.items()},
    "aten.gelu.default": _gelu,
    "aten.log1p.default": _log1p,
    "aten.expm1.default": _expm1,
    "aten.logical_not.default": _logical_not,
    "aten.bitwise_not.default": _bitwise_not,
    "aten.pow.Tensor_Scalar": _pow,
    "aten.where.self": _where,
    "aten.clamp.default": _clamp,
    "aten.clamp.Tensor": _clamp,
    "aten.softmax.int": _softmax,
    "aten._softmax.default": _softmax,
    "aten._to_copy.default": _cast,
    "dim_order_ops._to_dim_order_copy.default": _cast,
    "aten.scalar_tensor.default": _scalar_tensor,
    "aten.full.default": _full,
    "aten.full_like.default": _full_like,
}
