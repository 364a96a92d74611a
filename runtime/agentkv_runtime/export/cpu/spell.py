"""What the delegate cannot take, spelled in the ops that XNNPACK's partitioner knows."""

from __future__ import annotations

import math
from operator import getitem
from typing import Any

import torch
from executorch.exir.dialects._ops import ops as edge
from torch import fx
from torch.fx.passes.infra.pass_base import PassResult

from agentkv_runtime.export.cpu.nodes import GATE, LINEAR
from agentkv_runtime.export.cpu.strided import is_heads, is_rows
from agentkv_runtime.export.row_ops import Gate

__all__ = ["spell_others"]

_ACTIVATIONS = (torch.int8, -128, 127)


def _spell_linear(graph: fx.Graph, node: fx.Node) -> None:
    """Puts torchao's ops in the place of one layer."""
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
    """Silu and the tanh approximation of gelu are both x times a logistic function of it."""
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


def spell_others(module: fx.GraphModule) -> PassResult:
    """A pass over the edge graph: layers and gates over something else than rows of numbers for each token."""
    ours = {LINEAR: (_spell_linear, is_rows), GATE: (_spell_gate, is_heads)}
    for node in list(module.graph.nodes):
        if node.target in ours:
            spell, fits = ours[node.target]
            if not (fits(node) and fits(node.args[0])):
                spell(module.graph, node)
    module.recompile()
    return PassResult(module, True)
