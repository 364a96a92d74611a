"""Builds a delegate's graph node by node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._export.utils import get_buffer, get_lifted_tensor_constant, get_param
from torch.export import ExportedProgram

from agentkv_runtime.errors import UnsupportedModelError
from agentkv_runtime.export.mlx.graph import DTYPES, Constant, Graph, Instruction, Opcode, TensorType

__all__ = ["GraphBuilder", "Value", "constant_of", "module_of", "refusal", "sizes_of"]


@dataclass(frozen=True)
class Value:
    """A tensor of the graph. Constants have a numbering of their own from 0, as they come before all other values."""

    index: int
    dtype: torch.dtype
    is_constant: bool = False


def module_of(node: fx.Node) -> str:
    """Name of the module that a node was traced from, for messages."""
    # A node that a pass made names that pass twice.
    stack = [entry for entry in (node.meta.get("nn_module_stack") or {}).values() if entry[0] != entry[1]]
    if not stack:
        return "the program"
    path, kind = stack[-1]
    name = kind if isinstance(kind, str) else kind.__name__
    return f"{path or 'the model'} ({name.rpartition('.')[2]})"


def refusal(node: fx.Node, why: str) -> UnsupportedModelError:
    """An UnsupportedModelError that names the op, its module and `why` it cannot be lowered."""
    op = getattr(node.target, "__name__", str(node.target))
    return UnsupportedModelError(f"{op} in {module_of(node)} has no counterpart on MLX: {why}")


def constant_of(program: ExportedProgram, node: fx.Node) -> tuple[str, torch.Tensor] | None:
    """Name and data of a weight's placeholder; None for the placeholder of an argument."""
    signature = program.graph_signature
    for names, get in (
        (signature.inputs_to_parameters, get_param),
        (signature.inputs_to_buffers, get_buffer),
        (signature.inputs_to_lifted_tensor_constants, get_lifted_tensor_constant),
    ):
        if node.name in names:
            tensor = get(program, node)
            assert tensor is not None, f"{node.name} has no data"
            return names[node.name], tensor.detach()
    return None


def sizes_of(node: fx.Node) -> list[int]:
    """Sizes of a node's tensor, -1 for those that depend on the call."""
    return [size if isinstance(size, int) else -1 for size in node.meta["val"].shape]


class GraphBuilder:
    """A growing graph, and the values of the traced program's nodes in it."""

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._instructions: list[tuple[Opcode, tuple[Value | None, ...], tuple[int, ...], tuple[float, ...]]] = []
        self._graph = Graph()
        self._values: dict[fx.Node, Value | list[Value]] = {}
        self._scalars: dict[tuple[float, torch.dtype], Value] = {}
        self.weights: dict[str, torch.Tensor] = {}
        """Data of the graph's constants, by key."""

    def add_input(self, node: fx.Node) -> None:
        """Adds the next argument of a call."""
        dtype = node.meta["val"].dtype
        self._values[node] = Value(len(self._graph.inputs), dtype)
        self._graph.inputs.append(TensorType(dtype, tuple(sizes_of(node))))

    def is_input(self, value: Value) -> bool:
        """Whether the value is an argument of the call."""
        return not value.is_constant and value.index < len(self._graph.inputs)

    def set(self, node: fx.Node, value: Value | list[Value]) -> None:
        """Records the value of a node, or a list of values for an op with several results."""
        self._values[node] = value

    def several(self, node: fx.Node) -> list[Value]:
        """The values of an op with several results."""
        values = self._values[node]
        assert isinstance(values, list), f"{node} has one result"
        return values

    def value(self, node: fx.Node) -> Value:
        """The value of a node; adds a constant for a weight on its first use."""
        if node not in self._values:
            found = constant_of(self._program, node)
            if found is None:
                raise refusal(node, "its result is needed, and nothing computes it")
            self._values[node] = self._constant(*found)
        value = self._values[node]
        assert isinstance(value, Value), f"{node} has several results"
        return value

    def operand(self, arg: Any, dtype: torch.dtype) -> Value:
        """A node or a number as a value of `dtype`."""
        number = self._number(arg)
        if number is not None:
            return self.scalar(number, dtype)
        return self.cast(self.value(arg), dtype)

    def scalar(self, number: float, dtype: torch.dtype) -> Value:
        """A 0-dimensional value."""
        key = (number, dtype)
        if key not in self._scalars:
            self._scalars[key] = self.emit(Opcode.SCALAR, (), (DTYPES[dtype],), (number,), dtype=dtype)
        return self._scalars[key]

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        """The value converted to `dtype`; unchanged if it has it."""
        if value.dtype == dtype:
            return value
        return self.emit(Opcode.CAST, (value,), (DTYPES[dtype],), dtype=dtype)

    def emit(
        self,
        opcode: Opcode,
        args: Sequence[Value | None],
        ints: Sequence[int] = (),
        floats: Sequence[float] = (),
        *,
        dtype: torch.dtype,
    ) -> Value:
        """Appends an instruction and returns its result, of `dtype`."""
        self._instructions.append((opcode, tuple(args), tuple(ints), tuple(floats)))
        return Value(len(self._graph.inputs) + len(self._instructions) - 1, dtype)

    def finish(self, outputs: Sequence[fx.Node]) -> Graph:
        """The graph with the values of these nodes as results."""
        graph = self._graph
        graph.outputs = [
            (self._id(value), TensorType(value.dtype, tuple(sizes_of(node))))
            for node, value in ((node, self.value(node)) for node in outputs)
        ]
        graph.instructions = [
            Instruction(opcode, tuple(-1 if arg is None else self._id(arg) for arg in args), ints, floats)
            for opcode, args, ints, floats in self._instructions
        ]
        return graph

    def _id(self, value: Value) -> int:
        n_inputs, n_constants = len(self._graph.inputs), len(self._graph.constants)
        if value.is_constant:
            return n_inputs + value.index
        return value.index if value.index < n_inputs else value.index + n_constants

    def _constant(self, key: str, tensor: torch.Tensor) -> Value:
        value = Value(len(self._graph.constants), tensor.dtype, is_constant=True)
        self._graph.constants.append(Constant(key, TensorType(tensor.dtype, tuple(tensor.shape))))
        self.weights[key] = tensor
        return value

    def _number(self, arg: Any) -> float | None:
        """The value of a numeric operand, a Python number or a 0-dimensional weight; None for other operands."""
        if isinstance(arg, int | float):
            return float(arg)
        if isinstance(arg, fx.Node) and arg.op == "placeholder" and not arg.meta["val"].shape:
            found = constant_of(self._program, arg)
            return None if found is None else float(found[1])
        return None
