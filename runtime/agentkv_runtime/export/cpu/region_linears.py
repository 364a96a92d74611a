"""Compilation of a region's linear layers, experts and lookups to instructions."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import fx

from agentkv_runtime.export.cpu.blob import BlockExpertLinear, BlockLinear, BlockLookup, ExpertLinear, Linear
from agentkv_runtime.export.cpu.blob_weights import Blocks, Weight
from agentkv_runtime.export.cpu.compiler import Compiler
from agentkv_runtime.export.cpu.nodes import BLOCK_LINEAR, LINEAR, PARAMETER, group_size
from agentkv_runtime.export.cpu.strided import Value, rows_of

__all__ = ["block_experts", "block_linear", "block_lookup", "float_experts", "int8_experts", "linear"]


def _layer_key(layer: fx.Node) -> object:
    """A key that is equal for linear layers that can be computed as one product."""
    return layer.args[0], layer.args[5], group_size(layer)


def linear(c: Compiler, node: fx.Node, x: fx.Node, *_: object) -> Value:
    """Compiles a linear layer; layers over the same rows become one product with concatenated results."""
    if node in c.values:
        return c.values[node]
    layers = [each for each in c.nodes if each.target == LINEAR and _layer_key(each) == _layer_key(node)]
    arguments: list[Any] = [layer.args for layer in layers]
    parts = [c.tensors(codes, scales) for _, codes, scales, *_ in arguments]
    weight = Weight(arguments[0][5], group_size(node), parts, layers=_titles(layers))
    whole, bias = _side_by_side(c, layers, [each[4] for each in arguments])
    c.emit(Linear(c.rows(x), rows_of(whole), weight, bias))
    return c.values[node]


def block_linear(c: Compiler, node: fx.Node, x: fx.Node, rows: fx.Node, bias: fx.Node | None, kind: int) -> Value:
    """Like `linear`, for weights in blocks; one product has blocks of one type."""
    del rows, bias
    if node in c.values:
        return c.values[node]
    layers = [each for each in c.nodes if each.target == BLOCK_LINEAR and (each.args[0], each.args[3]) == (x, kind)]
    arguments: list[Any] = [layer.args for layer in layers]
    blocks = Blocks(int(kind), [c.tensor(each[1]) for each in arguments], layers=_titles(layers))
    whole, added = _side_by_side(c, layers, [each[2] for each in arguments])
    c.emit(BlockLinear(c.rows(x), rows_of(whole), blocks, added))
    return c.values[node]


def _titles(layers: list[fx.Node]) -> list[tuple[str, int]]:
    """Name and number of outputs of each layer; the name is that of its weight, which `AgentKVCPU` notes on nodes."""
    titles = []
    for layer in layers:
        weight = layer.args[1]
        name = weight.meta.get(PARAMETER, "") if isinstance(weight, fx.Node) else ""
        titles.append((name.rpartition(".")[0], int(layer.meta["val"].shape[-1])))
    return titles


def _side_by_side(c: Compiler, layers: list[fx.Node], biases: list[fx.Node | None]) -> tuple[Value, int]:
    """Allocates the joint result of layers that are one product, and gives each its part; returns it and the bias."""
    widths = [int(layer.meta["val"].shape[-1]) for layer in layers]
    whole = c.new(layers[0], sum(widths))
    for layer, end, width in zip(layers, accumulate(widths), widths, strict=True):
        c.values[layer] = whole.narrow(end - width, width)
    return whole, _bias(c, biases, widths)


def block_lookup(
    c: Compiler, node: fx.Node, ids: fx.Node, rows: fx.Node, kind: int, width: int, factor: float
) -> Value:
    """Compiles a lookup of rows in a table in blocks."""
    del width
    result = c.new(node)
    blocks, table = Blocks(int(kind), [c.tensor(rows)]), int(rows.meta["val"].shape[0])
    c.emit(BlockLookup(c.integers(ids), rows_of(result), blocks, table, float(factor)))
    return result


def _experts(
    c: Compiler, node: fx.Node, x: fx.Node, chosen: fx.Node, weight: Weight | Blocks, bias: fx.Node | None
) -> Value:
    result = c.new(node)
    kind: Any = BlockExpertLinear if isinstance(weight, Blocks) else ExpertLinear
    c.emit(
        kind(
            src=c.rows(x),
            dst=rows_of(result),
            experts=int(node.args[2].meta["val"].shape[0]),  # type: ignore[union-attr]
            chosen=c.integers(chosen),
            weight=weight,
            bias=0 if bias is None else 1 + c.constant_index([bias]),
        )
    )
    return result


def float_experts(
    c: Compiler, node: fx.Node, x: fx.Node, chosen: fx.Node, weight: fx.Node, bias: fx.Node | None
) -> Value:
    """Compiles a layer of experts with float weights."""
    inputs = int(weight.meta["val"].shape[2])
    return _experts(c, node, x, chosen, Weight(32, inputs, [c.tensors(weight)]), bias)


def int8_experts(
    c: Compiler,
    node: fx.Node,
    x: fx.Node,
    chosen: fx.Node,
    codes: fx.Node,
    scales: fx.Node,
    bias: fx.Node | None,
    bits: int,
) -> Value:
    """Compiles a layer of experts with quantised weights."""
    return _experts(c, node, x, chosen, Weight(bits, group_size(node), [c.tensors(codes, scales)]), bias)


def block_experts(
    c: Compiler, node: fx.Node, x: fx.Node, chosen: fx.Node, rows: fx.Node, bias: fx.Node | None, kind: int
) -> Value:
    """Compiles a layer of experts with weights in blocks."""
    return _experts(c, node, x, chosen, Blocks(int(kind), [c.tensor(rows)]), bias)


def _bias(c: Compiler, biases: list[fx.Node | None], widths: list[int]) -> int:
    """Index of the constant of all biases plus 1, or 0 if no layer has one."""
    if not any(biases):
        return 0
    return 1 + c.constant_index([bias or torch.zeros(width) for bias, width in zip(biases, widths, strict=True)])
