"""Compiles a region of the edge graph, around attention or a whole decoder, into the delegate's instructions.

Views, permutes and slices cost nothing: every value is a strided view of the buffer that it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx

from agentkv_runtime.export.cpu.blob import (
    Activate,
    Add,
    Convolve,
    Gated,
    LinearAttend,
    Multiply,
    Program,
    RmsNorm,
    Rope,
    RopeTable,
    Scan,
    UpdateAndAttend,
    WeightedSum,
)
from agentkv_runtime.export.cpu.compiler import Compiler
from agentkv_runtime.export.cpu.nodes import (
    ADD,
    ATTEND,
    BLOCK_EXPERTS,
    BLOCK_LINEAR,
    BLOCK_LOOKUP,
    CONVOLVE,
    FLOAT_EXPERTS,
    GATE,
    INT8_EXPERTS,
    LINEAR,
    LINEAR_ATTEND,
    MULTIPLY,
    RMS_NORM,
    ROPE,
    ROPE_TABLE,
    SCAN,
    WEIGHTED_SUM,
    gate_of,
    name_of,
)
from agentkv_runtime.export.cpu.region_linears import (
    block_experts,
    block_linear,
    block_lookup,
    float_experts,
    int8_experts,
    linear,
)
from agentkv_runtime.export.cpu.strided import RegionError, Value, rows_of, symbols_of
from agentkv_runtime.export.cpu.view_ops import VIEWS
from agentkv_runtime.hf.convolution import conv_shape

__all__ = ["compile_region"]


def _norm(c: Compiler, node: fx.Node, x: fx.Node, weight: fx.Node, eps: float) -> Value:
    result = c.result(node, x)
    c.emit(RmsNorm(c.rows(x), rows_of(result), c.constant_index([weight]), float(eps)))
    return result


def _rope(c: Compiler, node: fx.Node, x: fx.Node, table: fx.Node, interleaved: bool) -> Value:
    result = c.result(node, x)
    c.emit(Rope(c.rows(x), rows_of(result), c.rows(table), bool(interleaved)))
    return result


def _rope_table(c: Compiler, node: fx.Node, position: fx.Node, inv_freq: fx.Node, scaling: float) -> Value:
    result = c.new(node)
    c.emit(RopeTable(c.integers(position), rows_of(result), c.constant_index([inv_freq]), float(scaling)))
    return result


def _attend(
    c: Compiler,
    node: fx.Node,
    q: fx.Node,
    k: fx.Node,
    v: fx.Node,
    position: fx.Node,
    layer: int,
    scale: float,
    out_dtype: torch.dtype,
    window: int = 0,
    chunk: int = 0,
    cap: float = 0.0,
    sink_scores: fx.Node | None = None,
    slopes: fx.Node | None = None,
    writes: bool = True,
) -> Value:
    if out_dtype is not torch.float32:
        raise RegionError(f"{node} returns {out_dtype}, not float32")
    result = c.new(node)
    c.emit(
        UpdateAndAttend(
            layer_id=int(layer),
            position=c.integers(position),
            scale=float(scale),
            window=int(window),
            chunk=int(chunk),
            cap=float(cap),
            sink_scores=0 if sink_scores is None else 1 + c.constant_index([sink_scores]),
            slopes=0 if slopes is None else 1 + c.constant_index([slopes]),
            writes=bool(writes),
            q=c.rows(q),
            k=c.rows(k),
            v=c.rows(v),
            dst=rows_of(result),
        )
    )
    return result


def _sum(c: Compiler, node: fx.Node, a: fx.Node, b: fx.Node) -> Value:
    result = c.result(node, a)
    c.emit(Add(c.rows(a), c.rows(b), rows_of(result)))
    return result


def _gate(c: Compiler, node: fx.Node, x: fx.Node, kind: int) -> Value | None:
    """Compiles a gate; returns None if the following product computes it."""
    if any(user in c.members and gate_of(user) is node for user in node.users):
        return None
    result = c.result(node, x)
    c.emit(Activate(c.rows(x), rows_of(result), int(kind)))
    return result


def _product(c: Compiler, node: fx.Node, a: fx.Node, b: fx.Node) -> Value:
    gate = gate_of(node)
    if gate is None or gate not in c.members:
        result = c.result(node, a)
        c.emit(Multiply(c.rows(a), c.rows(b), rows_of(result)))
        return result
    x, kind = gate.args
    up = b if gate is a else a
    result = c.result(node, x)  # type: ignore[arg-type]
    c.emit(Gated(c.rows(x), c.rows(up), rows_of(result), int(kind)))  # type: ignore[arg-type]
    return result


def _convolve(
    c: Compiler, node: fx.Node, x: fx.Node, weight: fx.Node, bias: fx.Node | None, position: fx.Node, layer: int
) -> Value:
    result = c.new(node)
    shape = conv_shape(int(node.meta["val"].shape[2]))

    cut = [shape.n_kv_heads, shape.k_dim]
    values = (value.map(lambda tensor, _: tensor.unflatten(2, cut).transpose(1, 2)) for value in (c.values[x], result))
    source, target = (rows_of(value) for value in values)
    c.emit(
        Convolve(
            layer_id=int(layer),
            position=c.integers(position),
            width=int(weight.meta["val"].shape[2]),
            weight=c.constant_index([weight]),
            bias=0 if bias is None else 1 + c.constant_index([bias]),
            src=source,
            dst=target,
        )
    )
    return result


def _linear_attend(
    c: Compiler,
    node: fx.Node,
    q: fx.Node,
    k: fx.Node,
    v: fx.Node,
    decay: fx.Node,
    beta: fx.Node | None,
    corrects: bool,
    skip: fx.Node | None,
    position: fx.Node,
    layer: int,
) -> Value:
    result = c.new(node)
    c.emit(
        LinearAttend(
            layer_id=int(layer),
            position=c.integers(position),
            corrects=bool(corrects),
            has_beta=beta is not None,
            skip=0 if skip is None else 1 + c.constant_index([skip]),
            q=c.rows(q),
            k=c.rows(k),
            v=c.rows(v),
            decay=c.rows(decay),
            beta=c.rows(decay if beta is None else beta),
            dst=rows_of(result),
        )
    )
    return result


def _scan(
    c: Compiler,
    node: fx.Node,
    x: fx.Node,
    decay: fx.Node,
    rates: fx.Node,
    b: fx.Node,
    c_: fx.Node,
    position: fx.Node,
    layer: int,
) -> Value:
    result = c.new(node)
    c.emit(
        Scan(
            layer_id=int(layer),
            position=c.integers(position),
            rates=c.constant_index([rates]),
            x=c.rows(x),
            decay=c.rows(decay),
            b=c.rows(b),
            c=c.rows(c_),
            dst=rows_of(result),
        )
    )
    return result


def _weighted_sum(c: Compiler, node: fx.Node, x: fx.Node, weights: fx.Node) -> Value:
    result = c.new(node)
    c.emit(WeightedSum(c.rows(x), c.rows(weights), rows_of(result)))
    return result


_OPS: dict[object, Callable[..., Value | None]] = {
    RMS_NORM: _norm,
    ROPE: _rope,
    ROPE_TABLE: _rope_table,
    ATTEND: _attend,
    LINEAR: linear,
    BLOCK_LINEAR: block_linear,
    BLOCK_LOOKUP: block_lookup,
    ADD: _sum,
    GATE: _gate,
    MULTIPLY: _product,
    CONVOLVE: _convolve,
    LINEAR_ATTEND: _linear_attend,
    SCAN: _scan,
    FLOAT_EXPERTS: float_experts,
    INT8_EXPERTS: int8_experts,
    BLOCK_EXPERTS: block_experts,
    WEIGHTED_SUM: _weighted_sum,
}


def _add(c: Compiler, node: fx.Node) -> None:
    compile_ = _OPS.get(node.target) or VIEWS.get(name_of(node))
    if compile_ is None:
        raise RegionError(f"{node} is not an op of the delegate")
    result = compile_(c, node, *node.args)
    if result is not None:
        c.values[node] = result


def compile_region(
    nodes: Sequence[fx.Node],
    inputs: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
    constant: Callable[[fx.Node], torch.Tensor | None],
) -> Program:
    """Compiles `nodes`, in graph order, to the delegate's program; `constant` returns the data of a constant input.

    Raises RegionError for a region that is not a list of row instructions over strided views.
    """
    symbols = set[object]().union(*(symbols_of(node) for node in nodes))
    if len(symbols) > 1:
        raise RegionError(f"sizes depend on {symbols}: the rows of a region must be one symbol")
    compiler = Compiler(nodes, constant)
    for node in inputs:
        compiler.add_input(node)
    for node in nodes:
        _add(compiler, node)
    return compiler.finish(outputs)
