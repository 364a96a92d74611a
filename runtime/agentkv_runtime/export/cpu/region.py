"""Compiles a region of the edge graph around attention into the delegate's instructions.

Views, permutes and slices cost nothing: every value is followed as a strided view of the buffer that it came from.
Strides may depend on the number of rows T, so the region is evaluated on meta tensors at two values of T and each
number is read off as `constant + per_token * T`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir.dialects._ops import ops as edge
from torch import fx

from agentkv_runtime.export import row_ops as _row_ops  # noqa: F401
from agentkv_runtime.export.cpu.blob import (
    Buffer,
    Copy,
    DType,
    Extent,
    Place,
    Program,
    RmsNorm,
    Rope,
    RopeTable,
    UpdateAndAttend,
    View,
)
from agentkv_runtime.hf import op as _op  # noqa: F401  (defines the ops)

__all__ = ["ATTEND", "ROW_OPS", "VIEW_OPS", "RegionError", "compile_region", "is_view"]

_SIZES = (101, 211)  # two values of T that no static size is likely to equal, least of all both

ATTEND = edge.edge.agentkv.update_and_attend.default
_RMS_NORM = edge.edge.agentkv.rms_norm.default
_ROPE = edge.edge.agentkv.rope.default
_ROPE_TABLE = edge.edge.agentkv.rope_table.default
ROW_OPS = frozenset({_RMS_NORM, _ROPE, _ROPE_TABLE})

_IDENTITIES = frozenset(
    {
        "aten.alias_copy.default",
        "aten.clone.default",
        "dim_order_ops._clone_dim_order.default",
    }
)
_RESHAPES = frozenset({"aten.view_copy.default", "aten.unsqueeze_copy.default", "aten.squeeze_copy.dims"})
VIEW_OPS = _IDENTITIES | _RESHAPES | {"aten.permute_copy.default", "aten.transpose_copy.int", "aten.slice_copy.Tensor"}


class RegionError(ValueError):
    """The region is not a list of row instructions over strided views."""


def _name(node: fx.Node) -> str:
    name = getattr(node.target, "__name__", None)
    return name if isinstance(name, str) else str(node.target)


def is_view(node: fx.Node) -> bool:
    """Is the node one of VIEW_OPS, which compile to nothing?"""
    return node.op == "call_function" and _name(node) in VIEW_OPS


@dataclass
class _Value:
    """A tensor of the region, at both sizes of T, as a view of a buffer."""

    buffer: Buffer
    at: tuple[torch.Tensor, torch.Tensor]

    def map(self, function: Callable[[torch.Tensor, int], torch.Tensor]) -> _Value:
        a, b = self.at
        return _Value(self.buffer, (function(a, 0), function(b, 1)))


def _extent(a: int, b: int) -> Extent:
    slope, rest = divmod(b - a, _SIZES[1] - _SIZES[0])
    if rest:
        raise RegionError(f"{a} and {b} at {_SIZES} rows do not lie on a line")
    return Extent(a - slope * _SIZES[0], slope)


def _size(size: int | torch.SymInt, tokens: int) -> int:
    if isinstance(size, int):
        return size
    expr = size.node.expr
    symbols = list(expr.free_symbols)
    if len(symbols) > 1:
        raise RegionError(f"a size depends on {symbols}: the rows of a region must be one symbol")
    return int(expr.subs({symbol: tokens for symbol in symbols}))


def _shape(node: fx.Node, which: int) -> list[int]:
    return [_size(size, _SIZES[which]) for size in node.meta["val"].shape]


def _extents(node: fx.Node) -> tuple[Extent, ...]:
    return tuple(_extent(a, b) for a, b in zip(_shape(node, 0), _shape(node, 1), strict=True))


def _view(value: _Value) -> View:
    """The value as rows of heads; RegionError when its dimensions do not say so."""
    a, b = value.at
    token = [i for i in range(a.dim()) if (a.shape[i], b.shape[i]) == _SIZES]
    last = a.dim() - 1
    if len(token) != 1 or token[0] == last or a.stride(last) != 1 or b.stride(last) != 1:
        raise RegionError(f"shape {list(a.shape)} with strides {a.stride()} is not rows of contiguous blocks")
    heads = [i for i in range(last) if i != token[0] and (a.shape[i], b.shape[i]) != (1, 1)]
    if len(heads) > 1 or any(a.shape[i] != b.shape[i] for i in heads) or a.shape[last] != b.shape[last]:
        raise RegionError(f"shape {list(a.shape)} has more dimensions than rows, heads and features")
    head_stride = _extent(a.stride(heads[0]), b.stride(heads[0])) if heads else Extent(0, 0)
    return View(
        value.buffer,
        a.shape[heads[0]] if heads else 1,
        a.shape[last],
        _extent(int(a.storage_offset()), int(b.storage_offset())),
        head_stride,
        _extent(a.stride(token[0]), b.stride(token[0])),
    )


class _Compiler:
    def __init__(self, constant: Callable[[fx.Node], torch.Tensor | None]) -> None:
        self.constant = constant
        self.program = Program()
        self.values: dict[fx.Node, _Value] = {}
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
        self.program.inputs.append((dtype, _extents(node)))
        if dtype is DType.FLOAT32:
            tensors = [torch.empty(_shape(node, which), device="meta") for which in (0, 1)]
            self.values[node] = _Value(Buffer(Place.INPUT, index), (tensors[0], tensors[1]))

    def _new(self, node: fx.Node) -> _Value:
        """A temporary for the node's result, stored row by row."""
        shapes = [_shape(node, which) for which in (0, 1)]
        token = [i for i, pair in enumerate(zip(*shapes, strict=True)) if pair == _SIZES]
        if len(token) != 1:
            raise RegionError(f"{node} has shape {shapes[0]} at {_SIZES[0]} rows: no single dimension of rows")
        tensors = []
        for shape in shapes:
            rest = shape[: token[0]] + shape[token[0] + 1 :]
            tensors.append(torch.empty([shape[token[0]], *rest], device="meta").movedim(0, token[0]))
        buffer = Buffer(Place.TEMP, len(self.temps), tensors[0].numel() // _SIZES[0])
        self.temps.append(buffer)
        return _Value(buffer, (tensors[0], tensors[1]))

    def _result(self, node: fx.Node, source: fx.Node) -> _Value:
        """In place where the source is a temporary that nothing else reads."""
        value = self.values[source]
        if value.buffer.place is Place.TEMP and len(source.users) == 1:
            return value
        return self._new(node)

    def _constant(self, node: fx.Node) -> int:
        tensor = self.constant(node)
        if tensor is None:
            raise RegionError(f"{node} must be a constant")
        self.program.constants.append(tensor.flatten())
        return len(self.program.constants) - 1

    def _position(self, node: Any) -> int:
        if node not in self.input_index:
            raise RegionError(f"position {node} must be an input of the region")
        return self.input_index[node]

    def _reshape(self, node: fx.Node) -> _Value:
        source = self.values[node.args[0]]  # type: ignore[index]
        try:
            return source.map(lambda tensor, which: tensor.view(_shape(node, which)))
        except RuntimeError:
            flat = self._new(node)
            dense = source.map(lambda tensor, which: flat.at[which].view(tensor.shape))
            self.program.instructions.append(Copy(_view(source), _view(_Value(flat.buffer, dense.at))))
            return flat

    def _slice(self, node: fx.Node, args: Any) -> _Value:
        dim: int = args[1] if len(args) > 1 else 0
        start: Any = (args[2] if len(args) > 2 else None) or 0
        if (len(args) > 4 and args[4] != 1) or not isinstance(start, int):
            raise RegionError(f"{node} slices with a step or from a symbol")
        return self.values[args[0]].map(
            lambda tensor, which: tensor.narrow(dim, start % max(tensor.shape[dim], 1), _shape(node, which)[dim])
        )

    def add(self, node: fx.Node) -> None:
        args: Any = node.args
        emit = self.program.instructions.append
        name = _name(node)
        if name in _IDENTITIES:
            self.values[node] = self.values[args[0]]
        elif name in _RESHAPES:
            self.values[node] = self._reshape(node)
        elif name == "aten.permute_copy.default":
            self.values[node] = self.values[args[0]].map(lambda tensor, _: tensor.permute(args[1]))
        elif name == "aten.transpose_copy.int":
            self.values[node] = self.values[args[0]].map(lambda tensor, _: tensor.transpose(args[1], args[2]))
        elif name == "aten.slice_copy.Tensor":
            self.values[node] = self._slice(node, args)
        elif node.target == _RMS_NORM:
            result = self._result(node, args[0])
            emit(RmsNorm(_view(self.values[args[0]]), _view(result), self._constant(args[1]), float(args[2])))
            self.values[node] = result
        elif node.target == _ROPE:
            result = self._result(node, args[0])
            source, table = self.values[args[0]], self.values[args[1]]
            emit(Rope(_view(source), _view(result), _view(table), bool(args[2])))
            self.values[node] = result
        elif node.target == _ROPE_TABLE:
            result = self._new(node)
            emit(RopeTable(self._position(args[0]), _view(result), self._constant(args[1]), float(args[2])))
            self.values[node] = result
        elif node.target == ATTEND:
            self.values[node] = self._attend(node)
        else:
            raise RegionError(f"{node} is not an op of the delegate")

    def _attend(self, node: fx.Node) -> _Value:
        args: Any = (*node.args, 0)[:8]
        q, k, v, position, layer_id, scale, out_dtype, window = args
        if out_dtype is not torch.float32:
            raise RegionError(f"{node} returns {out_dtype}, not float32")
        result = self._new(node)
        self.program.instructions.append(
            UpdateAndAttend(
                layer_id=int(layer_id),
                position=self._position(position),
                scale=float(scale),
                window=int(window),
                q=_view(self.values[q]),
                k=_view(self.values[k]),
                v=_view(self.values[v]),
                dst=_view(result),
            )
        )
        return result

    def finish(self, outputs: Sequence[fx.Node]) -> Program:
        """Lets each output's buffer be the output itself where it is dense, and copies where it is not."""
        bound: set[int] = set()
        for index, node in enumerate(outputs):
            value = self.values[node]
            self.program.outputs.append((DType.FLOAT32, _extents(node)))
            dense = all(
                tensor.is_contiguous() and tensor.numel() == value.buffer.floats_per_token * size
                for tensor, size in zip(value.at, _SIZES, strict=True)
            )
            if dense and value.buffer.place is Place.TEMP and id(value.buffer) not in bound:
                bound.add(id(value.buffer))
                value.buffer.place, value.buffer.index = Place.OUTPUT, index
                continue
            tensors = [torch.empty(_shape(node, which), device="meta") for which in (0, 1)]
            out = _Value(Buffer(Place.OUTPUT, index), (tensors[0], tensors[1]))
            self.program.instructions.append(Copy(_view(value), _view(out)))
        for buffer in self.temps:
            if buffer.place is Place.TEMP:
                buffer.index = len(self.program.temps)
                self.program.temps.append(buffer.floats_per_token)
        return self.program


def compile_region(
    nodes: Sequence[fx.Node],
    inputs: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
    constant: Callable[[fx.Node], torch.Tensor | None],
) -> Program:
    """Compiles `nodes`, in graph order, to the delegate's program; `constant` gives the data of a constant input.

    Raises RegionError when the region holds something else than row instructions over strided views.
    """
    compiler = _Compiler(constant)
    for node in inputs:
        compiler.add_input(node)
    for node in nodes:
        compiler.add(node)
    return compiler.finish(outputs)
