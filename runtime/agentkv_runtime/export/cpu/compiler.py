"""State and result of a region's compilation: values as views of buffers, constants, instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx

from agentkv_runtime.export.cpu.blob import Buffer, Copy, DType, Instruction, Place, Program, View
from agentkv_runtime.export.cpu.nodes import lone
from agentkv_runtime.export.cpu.strided import SIZES, RegionError, Value, extents_of, rows_of, shape_of
from agentkv_runtime.export.cpu.temps import place_temps
from agentkv_runtime.hf.deferred import is_deferred, taken

__all__ = ["Compiler"]


def _numbers(tensor: torch.Tensor) -> npt.NDArray[np.float32]:
    loaded: npt.NDArray[np.float32] = (taken(tensor) if is_deferred(tensor) else tensor).detach().float().numpy()
    return loaded


class Compiler:
    """The state of one region's compilation."""

    def __init__(self, nodes: Sequence[fx.Node], constant: Callable[[fx.Node], torch.Tensor | None]) -> None:
        self.constant = constant
        self.nodes = list(nodes)
        self.members = set(nodes)
        self.program = Program()
        self.values: dict[fx.Node, Value] = {}
        self.input_index: dict[fx.Node, int] = {}
        self.temps: list[Buffer] = []

    def add_input(self, node: fx.Node) -> None:
        """Adds an input of the region, of floats or integers."""
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

    def new(self, node: fx.Node, width: int | None = None) -> Value:
        """A new temporary for the node's result, or one with rows of `width`. Raises RegionError if it is not rows."""
        shapes = [shape_of(node, which) for which in (0, 1)]
        if width is not None:
            shapes = [[*shape[:-1], width] for shape in shapes]
        token = [i for i, pair in enumerate(zip(*shapes, strict=True)) if pair == SIZES]
        if not token and all(shape[0] % tokens == 0 for shape, tokens in zip(shapes, SIZES, strict=True)):
            token = [0]  # some rows for each token
        if len(token) != 1:
            raise RegionError(f"{node} has shape {shapes[0]} at {SIZES[0]} rows: no single dimension of rows")
        tensors = []
        for shape in shapes:
            rest = shape[: token[0]] + shape[token[0] + 1 :]
            tensors.append(torch.empty([shape[token[0]], *rest], device="meta").movedim(0, token[0]))
        buffer = Buffer(Place.TEMP, len(self.temps), tensors[0].numel() // SIZES[0])
        self.temps.append(buffer)
        return Value(buffer, (tensors[0], tensors[1]))

    def result(self, node: fx.Node, source: fx.Node) -> Value:
        """Storage for the node's result: the source's, if it is a temporary that nothing else reads, or a new one."""
        value = self.values[source]
        if value.buffer.place is Place.TEMP and lone(source):
            return value
        return self.new(node)

    def tensor(self, node: fx.Node) -> torch.Tensor:
        """The tensor of a constant. Raises RegionError for a node that is none."""
        tensor = self.constant(node)
        if tensor is None:
            raise RegionError(f"{node} must be a constant")
        return tensor

    def tensors(self, *nodes: fx.Node) -> tuple[torch.Tensor, ...]:
        """The tensors of constants. Raises RegionError for a node that is none."""
        return tuple(self.tensor(node) for node in nodes)

    def constant_index(self, parts: list[fx.Node | torch.Tensor]) -> int:
        """Adds a constant of the concatenated numbers of `parts` to the program; returns its index."""
        tensors = [part if isinstance(part, torch.Tensor) else self.tensor(part) for part in parts]
        self.program.constants.append([partial(_numbers, tensor) for tensor in tensors])
        return len(self.program.constants) - 1

    def integers(self, node: Any) -> int:
        """Index of an input of integers. Raises RegionError for a node that is no input."""
        if node not in self.input_index:
            raise RegionError(f"{node}, positions or choices, must be an input of the region")
        return self.input_index[node]

    def emit(self, instruction: Instruction) -> None:
        """Appends an instruction."""
        self.program.instructions.append(instruction)

    def rows(self, node: fx.Node) -> View:
        """The node's value as rows of heads. Raises RegionError if it is not rows."""
        return rows_of(self.values[node])

    def finish(self, outputs: Sequence[fx.Node]) -> Program:
        """Adds the outputs and returns the program: a dense temporary becomes the output itself, others are copied."""
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
