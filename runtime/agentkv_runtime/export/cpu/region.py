"""Compiles a region of the edge graph, around attention or a whole decoder, into the delegate's instructions.

Views, permutes and slices cost nothing: every value is followed as a strided view of the buffer that it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import fx

from agentkv_runtime.export.cpu.blob import (
    Activate,
    Add,
    Buffer,
    Copy,
    DType,
    ExpertLinear,
    Gated,
    Instruction,
    Linear,
    Place,
    Program,
    RmsNorm,
    Rope,
    RopeTable,
    UpdateAndAttend,
    View,
    Weight,
    WeightedSum,
)
from agentkv_runtime.export.cpu.nodes import (
    ADD,
    ATTEND,
    FLOAT_EXPERTS,
    GATE,
    INT8_EXPERTS,
    LINEAR,
    MULTIPLY,
    RMS_NORM,
    ROPE,
    ROPE_TABLE,
    WEIGHTED_SUM,
    gate_of,
    group_size,
    lone,
    name_of,
)
from agentkv_runtime.export.cpu.strided import SIZES, RegionError, Value, extents_of, rows_of, shape_of, symbols_of
from agentkv_runtime.export.cpu.temps import place_temps

__all__ = ["compile_region"]


def _layer_key(layer: fx.Node) -> object:
    """Equal for linear layers that can be one product."""
    return layer.args[0], layer.args[5], group_size(layer)


class _Compiler:
    def __init__(self, nodes: Sequence[fx.Node], constant: Callable[[fx.Node], torch.Tensor | None]) -> None:
        self.constant = constant
        self.members = set(nodes)
        self.layers: dict[object, list[fx.Node]] = {}
        for node in nodes:
            if node.target == LINEAR:
                self.layers.setdefault(_layer_key(node), []).append(node)
        self.program = Program()
        self.values: dict[fx.Node, Value] = {}
        self.input_index: dict[fx.Node, int] = {}
        self.temps: list[Buffer] = []

    def add_input(self, node: fx.Node) -> None:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            raise RegionError(f"input {node} is no tensor")
        dtype = {torch.float32: DType.FLOAT32, torch.int64: DType.INT64}.get(value.dtype)
        if dtype is None:
            raise RegionError(f"input {node} is {value.dtype}")
        index = len(self.program.inputs)
        self.input_index[node] = index
        self.program.inputs.append((dtype, extents_of(node)))
        if dtype is DType.FLOAT32:
            tensors = [torch.empty(shape_of(node, which), device="meta") for which in (0, 1)]
            self.values[node] = Value(Buffer(Place.INPUT, index), (tensors[0], tensors[1]))

    def _new(self, node: fx.Node, width: int | None = None) -> Value:
        """A temporary for the node's result, or one of another `width`, stored row by row."""
        shapes = [shape_of(node, which) for which in (0, 1)]
        if width is not None:
            shapes = [[*shape[:-1], width] for shape in shapes]
        token = [i for i, pair in enumerate(zip(*shapes, strict=True)) if pair == SIZES]
        if len(token) != 1:
            raise RegionError(f"{node} has shape {shapes[0]} at {SIZES[0]} rows: no single dimension of rows")
        tensors = []
        for shape in shapes:
            rest = shape[: token[0]] + shape[token[0] + 1 :]
            tensors.append(torch.empty([shape[token[0]], *rest], device="meta").movedim(0, token[0]))
        buffer = Buffer(Place.TEMP, len(self.temps), tensors[0].numel() // SIZES[0])
        self.temps.append(buffer)
        return Value(buffer, (tensors[0], tensors[1]))

    def _result(self, node: fx.Node, source: fx.Node) -> Value:
        """In place where the source is a temporary that nothing else reads."""
        value = self.values[source]
        if value.buffer.place is Place.TEMP and lone(source):
            return value
        return self._new(node)

    def _tensor(self, node: fx.Node) -> torch.Tensor:
        tensor = self.constant(node)
        if tensor is None:
            raise RegionError(f"{node} must be a constant")
        return tensor

    def _constant(self, parts: list[fx.Node | torch.Tensor]) -> int:
        tensors = [part if isinstance(part, torch.Tensor) else self._tensor(part) for part in parts]
        self.program.constants.append(tensors)
        return len(self.program.constants) - 1

    def _integers(self, node: Any) -> int:
        if node not in self.input_index:
            raise RegionError(f"{node}, positions or choices, must be an input of the region")
        return self.input_index[node]

    def _same(self, _: fx.Node, x: fx.Node, *__: object) -> Value:
        return self.values[x]

    def _permute(self, _: fx.Node, x: fx.Node, dims: list[int]) -> Value:
        return self.values[x].map(lambda tensor, _: tensor.permute(dims))

    def _transpose(self, _: fx.Node, x: fx.Node, a: int, b: int) -> Value:
        return self.values[x].map(lambda tensor, _: tensor.transpose(a, b))

    def _reshape(self, node: fx.Node, x: fx.Node, *_: object) -> Value:
        source = self.values[x]
        try:
            return source.map(lambda tensor, which: tensor.view(shape_of(node, which)))
        except RuntimeError:
            flat = self._new(node)
            dense = source.map(lambda tensor, which: flat.at[which].view(tensor.shape))
            self._emit(Copy(rows_of(source), rows_of(Value(flat.buffer, dense.at))))
            return flat

    def _slice(
        self, node: fx.Node, x: fx.Node, dim: int = 0, start: Any = None, end: object = None, step: int = 1
    ) -> Value:
        del end
        start = start or 0
        if step != 1 or not isinstance(start, int):
            raise RegionError(f"{node} slices with a step or from a symbol")
        return self.values[x].map(
            lambda tensor, which: tensor.narrow(dim, start % max(tensor.shape[dim], 1), shape_of(node, which)[dim])
        )

    def add(self, node: fx.Node) -> None:
        compile_ = _OPS.get(node.target) or _VIEWS.get(name_of(node))
        if compile_ is None:
            raise RegionError(f"{node} is not an op of the delegate")
        result = compile_(self, node, *node.args)
        if result is not None:
            self.values[node] = result

    def _emit(self, instruction: Instruction) -> None:
        self.program.instructions.append(instruction)

    def _rows(self, node: fx.Node) -> View:
        return rows_of(self.values[node])

    def _norm(self, node: fx.Node, x: fx.Node, weight: fx.Node, eps: float) -> Value:
        result = self._result(node, x)
        self._emit(RmsNorm(self._rows(x), rows_of(result), self._constant([weight]), float(eps)))
        return result

    def _rope(self, node: fx.Node, x: fx.Node, table: fx.Node, interleaved: bool) -> Value:
        result = self._result(node, x)
        self._emit(Rope(self._rows(x), rows_of(result), self._rows(table), bool(interleaved)))
        return result

    def _rope_table(self, node: fx.Node, position: fx.Node, inv_freq: fx.Node, scaling: float) -> Value:
        result = self._new(node)
        self._emit(RopeTable(self._integers(position), rows_of(result), self._constant([inv_freq]), float(scaling)))
        return result

    def _attend(
        self,
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
        result = self._new(node)
        self._emit(
            UpdateAndAttend(
                layer_id=int(layer),
                position=self._integers(position),
                scale=float(scale),
                window=int(window),
                chunk=int(chunk),
                cap=float(cap),
                sink_scores=0 if sink_scores is None else 1 + self._constant([sink_scores]),
                slopes=0 if slopes is None else 1 + self._constant([slopes]),
                writes=bool(writes),
                q=self._rows(q),
                k=self._rows(k),
                v=self._rows(v),
                dst=rows_of(result),
            )
        )
        return result

    def _sum(self, node: fx.Node, a: fx.Node, b: fx.Node) -> Value:
        result = self._result(node, a)
        self._emit(Add(self._rows(a), self._rows(b), rows_of(result)))
        return result

    def _gate(self, node: fx.Node, x: fx.Node, kind: int) -> Value | None:
        """None where the product that follows computes it."""
        if any(user in self.members and gate_of(user) is node for user in node.users):
            return None
        result = self._result(node, x)
        self._emit(Activate(self._rows(x), rows_of(result), int(kind)))
        return result

    def _product(self, node: fx.Node, a: fx.Node, b: fx.Node) -> Value:
        gate = gate_of(node)
        if gate is None or gate not in self.members:
            raise RegionError(f"{node} is no product with a gate")
        x, kind = gate.args
        up = b if gate is a else a
        result = self._result(node, x)  # type: ignore[arg-type]
        self._emit(Gated(self._rows(x), self._rows(up), rows_of(result), int(kind)))  # type: ignore[arg-type]
        return result

    def _linear(self, node: fx.Node, x: fx.Node, *_: object) -> Value:
        """Layers over the same rows are one product, whose results lie side by side."""
        if node in self.values:
            return self.values[node]
        layers = self.layers[_layer_key(node)]
        widths = [int(layer.meta["val"].shape[-1]) for layer in layers]
        whole = self._new(node, sum(widths))
        arguments: list[Any] = [layer.args for layer in layers]
        parts = [(self._tensor(codes), self._tensor(scales)) for _, codes, scales, *_ in arguments]
        weight = Weight(arguments[0][5], group_size(node), parts)
        bias = self._bias([each[4] for each in arguments], widths)
        self._emit(Linear(self._rows(x), rows_of(whole), weight, bias))
        for layer, end, width in zip(layers, accumulate(widths), widths, strict=True):
            self.values[layer] = whole.narrow(end - width, width)
        return self.values[node]

    def _experts(self, node: fx.Node, x: fx.Node, chosen: fx.Node, weight: Weight, bias: fx.Node | None) -> Value:
        result = self._new(node)
        self._emit(
            ExpertLinear(
                src=self._rows(x),
                dst=rows_of(result),
                experts=int(weight.parts[0][0].shape[0]),
                chosen=self._integers(chosen),
                weight=weight,
                bias=0 if bias is None else 1 + self._constant([bias]),
            )
        )
        return result

    def _float_experts(
        self, node: fx.Node, x: fx.Node, chosen: fx.Node, weight: fx.Node, bias: fx.Node | None
    ) -> Value:
        tensor = self._tensor(weight)
        return self._experts(node, x, chosen, Weight(32, int(tensor.shape[2]), [(tensor,)]), bias)

    def _int8_experts(
        self,
        node: fx.Node,
        x: fx.Node,
        chosen: fx.Node,
        codes: fx.Node,
        scales: fx.Node,
        bias: fx.Node | None,
        bits: int,
    ) -> Value:
        parts = self._tensor(codes), self._tensor(scales)
        group = int(parts[0].shape[2]) // int(parts[1].shape[2])
        return self._experts(node, x, chosen, Weight(bits, group, [parts]), bias)

    def _weighted_sum(self, node: fx.Node, x: fx.Node, weights: fx.Node) -> Value:
        result = self._new(node)
        self._emit(WeightedSum(self._rows(x), self._rows(weights), rows_of(result)))
        return result

    def _bias(self, biases: list[fx.Node | None], widths: list[int]) -> int:
        """One more than the index of the constant, 0 where no layer has a bias."""
        if not any(biases):
            return 0
        return 1 + self._constant([bias or torch.zeros(width) for bias, width in zip(biases, widths, strict=True)])

    def finish(self, outputs: Sequence[fx.Node]) -> Program:
        """Lets each output's buffer be the output itself where it is dense, and copies where it is not."""
        bound: set[int] = set()
        for index, node in enumerate(outputs):
            value = self.values[node]
            self.program.outputs.append((DType.FLOAT32, extents_of(node)))
            dense = all(
                tensor.is_contiguous() and tensor.numel() == value.buffer.floats_per_token * size
                for tensor, size in zip(value.at, SIZES, strict=True)
            )
            if dense and value.buffer.place is Place.TEMP and id(value.buffer) not in bound:
                bound.add(id(value.buffer))
                value.buffer.place, value.buffer.index = Place.OUTPUT, index
                continue
            tensors = [torch.empty(shape_of(node, which), device="meta") for which in (0, 1)]
            out = Value(Buffer(Place.OUTPUT, index), (tensors[0], tensors[1]))
            self.program.instructions.append(Copy(rows_of(value), rows_of(out)))
        self.program.temps = place_temps(self.program.instructions)
        return self.program


_OPS: dict[object, Callable[..., Value | None]] = {
    RMS_NORM: _Compiler._norm,
    ROPE: _Compiler._rope,
    ROPE_TABLE: _Compiler._rope_table,
    ATTEND: _Compiler._attend,
    LINEAR: _Compiler._linear,
    ADD: _Compiler._sum,
    GATE: _Compiler._gate,
    MULTIPLY: _Compiler._product,
    FLOAT_EXPERTS: _Compiler._float_experts,
    INT8_EXPERTS: _Compiler._int8_experts,
    WEIGHTED_SUM: _Compiler._weighted_sum,
}
_VIEWS: dict[str, Callable[..., Value]] = {
    "aten.alias_copy.default": _Compiler._same,
    "aten.clone.default": _Compiler._same,
    "aten.permute_copy.default": _Compiler._permute,
    "aten.slice_copy.Tensor": _Compiler._slice,
    "aten.squeeze_copy.dims": _Compiler._reshape,
    "aten.transpose_copy.int": _Compiler._transpose,
    "aten.unsqueeze_copy.default": _Compiler._reshape,
    "aten.view_copy.default": _Compiler._reshape,
    "dim_order_ops._clone_dim_order.default": _Compiler._same,
}


def compile_region(
    nodes: Sequence[fx.Node],
    inputs: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
    constant: Callable[[fx.Node], torch.Tensor | None],
) -> Program:
    """Compiles `nodes`, in graph order, to the delegate's program; `constant` gives the data of a constant input.

    Raises RegionError when the region holds something else than row instructions over strided views.
    """
    symbols = set[object]().union(*(symbols_of(node) for node in nodes))
    if len(symbols) > 1:
        raise RegionError(f"sizes depend on {symbols}: the rows of a region must be one symbol")
    compiler = _Compiler(nodes, constant)
    for node in inputs:
        compiler.add_input(node)
    for node in nodes:
        compiler.add(node)
    return compiler.finish(outputs)
