"""A pass that rewrites our ops that the delegate cannot take into ops that XNNPACK's partitioner knows."""

from __future__ import annotations

import math
from operator import getitem
from typing import Any

import torch
from executorch.exir.dialects._ops import ops as edge
from torch import fx
from torch.fx.passes.infra.pass_base import PassResult

from agentkv_runtime.export.cpu.nodes import CONVOLVE, GATE, LINEAR, source_of
from agentkv_runtime.export.cpu.strided import is_heads, is_rows
from agentkv_runtime.export.gates import Gate

__all__ = ["spell_others"]

_ACTIVATIONS = (torch.int8, -128, 127)


def _spell_linear(graph: fx.Graph, node: fx.Node) -> None:
    """Replaces a quantised linear layer by torchao's ops."""
    x, codes, scales, zeros, bias, bits = node.args
    rows: Any = x.meta["val"]  # type: ignore[union-attr]
    weight: Any = codes.meta["val"]  # type: ignore[union-attr]
    groups: Any = scales.meta["val"]  # type: ignore[union-attr]
    per_row, largest = [1] * (rows.dim() - 1) + [rows.shape[-1]], 1 << (int(bits) - 1)  # type: ignore[arg-type]
    ops: Any = edge.edge.torchao

    def call(target: Any, args: tuple[Any, ...], value: Any) -> fx.Node:
        made = graph.call_function(target, args)
        made.meta = {**node.meta, "val": value}
        return made

    per_token = rows.new_empty(rows.shape[:-1]), rows.new_empty(rows.shape[:-1], dtype=torch.int8)
    with graph.inserting_before(node):
        chosen = call(
            ops.choose_qparams_affine.default,
            (x, "ASYMMETRIC", per_row, *_ACTIVATIONS, None, None, torch.int8),
            per_token,
        )
        scale, zero = (call(getitem, (chosen, index), per_token[index]) for index in (0, 1))
        quantized = call(
            ops.quantize_affine.default,
            (x, per_row, scale, zero, *_ACTIVATIONS),
            rows.new_empty(rows.shape, dtype=torch.int8),
        )
        x = call(
            ops.dequantize_affine.default,
            (quantized, per_row, scale, zero, *_ACTIVATIONS),
            rows.new_empty(rows.shape),
        )
        real = call(
            ops.dequantize_affine.default,
            (codes, [1, weight.shape[1] // groups.shape[1]], scales, zeros, torch.int8, -largest, largest - 1),
            rows.new_empty(weight.shape),
        )
        args = (x, real) if bias is None else (x, real, bias)
        node.replace_all_uses_with(call(edge.edge.aten.linear.default, args, node.meta["val"]))
    graph.erase_node(node)


def _spell_gate(graph: fx.Graph, node: fx.Node) -> None:
    """Replaces a gate, silu or tanh-approximated gelu, by x times a logistic function of x."""
    x, kind = node.args
    ops: Any = edge.edge.aten

    def call(target: Any, *args: Any) -> fx.Node:
        made = graph.call_function(target, args)
        made.meta = dict(node.meta)
        return made

    with graph.inserting_before(node):
        inner: Any = x
        if kind == Gate.TANH_GELU:
            cube = call(ops.mul.Tensor, call(ops.mul.Tensor, x, x), x)
            sum_ = call(ops.add.Tensor, x, call(ops.mul.Tensor, cube, 0.044715))
            inner = call(ops.mul.Tensor, sum_, 2 * math.sqrt(2 / math.pi))
        node.replace_all_uses_with(call(ops.mul.Tensor, x, call(ops.sigmoid.default, inner)))
    graph.erase_node(node)


def _made(node: fx.Node, target: Any, args: tuple[Any, ...], value: Any = None) -> fx.Node:
    made = node.graph.call_function(target, args)
    made.meta = {**node.meta, "val": node.meta["val"] if value is None else value}
    return made


def _slice_parts(node: fx.Node) -> None:
    """Replaces a split, whose parts are copies, by slices, which are views."""
    x, widths, *dim = node.args
    at = dim[0] if dim else 0
    for part in list(node.users):
        first = sum(widths[: part.args[1]])  # type: ignore[index,arg-type]
        with node.graph.inserting_before(part):
            args = (x, at, first, first + widths[part.args[1]])  # type: ignore[index,operator]
            part.replace_all_uses_with(_made(part, edge.edge.aten.slice_copy.Tensor, args))
        node.graph.erase_node(part)
    node.graph.erase_node(node)


def _softplus_of(node: fx.Node) -> fx.Node | None:
    """The x of a `where` that computes softplus, x or log(1 + e^x); None for another `where`."""
    ops: Any = edge.edge.aten
    large, x, log = node.args
    if not (isinstance(large, fx.Node) and isinstance(x, fx.Node) and isinstance(log, fx.Node)):
        return None
    inner = log.args[0] if log.target == ops.log1p.default else None
    fits = large.target == ops.gt.Scalar and large.args == (x, 20.0) and isinstance(inner, fx.Node)
    return x if fits and inner.target == ops.exp.default and inner.args == (x,) else None  # type: ignore[union-attr]


_BEFORE_GATES = frozenset({CONVOLVE, LINEAR})


def _gate_in(node: fx.Node) -> tuple[fx.Node, Gate] | None:
    """Input and kind of the gate that a node computes: softplus, which XNNPACK lacks, or a gate of our layer's result.

    None for other nodes.
    """
    ops: Any = edge.edge.aten
    if node.target == ops.where.self:
        inside = _softplus_of(node)
        return None if inside is None else (inside, Gate.SOFTPLUS)
    if node.target == ops.sigmoid.default and source_of(x := node.all_input_nodes[0]).target == LINEAR:
        return x, Gate.SIGMOID
    for x in node.all_input_nodes if node.target == ops.mul.Tensor else ():
        others = [each for each in node.all_input_nodes if each is not x]
        gated = [each for each in others if each.target == ops.sigmoid.default and each.args == (x,)]
        if gated and source_of(x).target in _BEFORE_GATES:
            return x, Gate.SILU
    return None


def _take_gates(graph: fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):  # silu before the logistic function in it
        x, kind = _gate_in(node) or (None, Gate.SILU)
        if x is not None and node.users and is_heads(node) and is_heads(x):
            with graph.inserting_before(node):
                node.replace_all_uses_with(_made(node, GATE, (x, int(kind))))
            graph.erase_node(node)
    graph.eliminate_dead_code()


def spell_others(module: fx.GraphModule) -> PassResult:
    """Rewrites the edge graph: the delegate's gates where they are spelled out, and XNNPACK's ops for layers and gates
    whose values are not rows per token."""
    for node in list(module.graph.nodes):
        if node.target == edge.edge.aten.split_with_sizes_copy.default:
            _slice_parts(node)
    _take_gates(module.graph)
    ours = {LINEAR: (_spell_linear, is_rows), GATE: (_spell_gate, is_heads)}
    for node in list(module.graph.nodes):
        if node.target in ours:
            spell, fits = ours[node.target]
            if not (fits(node) and fits(node.args[0])):
                spell(module.graph, node)
    module.recompile()
    return PassResult(module, True)
