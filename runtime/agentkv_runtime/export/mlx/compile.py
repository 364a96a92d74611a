"""Compilation of a traced program to the delegate's graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from agentkv_runtime.errors import UnsupportedModelError
from agentkv_runtime.export.mlx.builder import GraphBuilder, constant_of, module_of
from agentkv_runtime.export.mlx.graph import Graph
from agentkv_runtime.export.mlx.ops import HANDLERS, name_of

__all__ = ["check_ops", "compile_program"]


def _calls(program: ExportedProgram) -> list[fx.Node]:
    """Nodes that return tensors. Others compute and check sizes, which the graph takes from the traced shapes."""
    return [
        node
        for node in program.graph.nodes
        if node.op == "call_function" and isinstance(node.meta["val"], torch.Tensor | list | tuple)
    ]


def check_ops(program: ExportedProgram) -> None:
    """Raises UnsupportedModelError naming ops without a counterpart in MLX, each with a module that uses it."""
    unknown: dict[str, str] = {}
    for node in _calls(program):
        if name_of(node) not in HANDLERS:
            unknown.setdefault(name_of(node), module_of(node))
    if unknown:
        listed = ", ".join(f"{name} in {module}" for name, module in list(unknown.items())[:3])
        listed += f", and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise UnsupportedModelError(f"the MLX backend does not compute {listed}")


def compile_program(program: ExportedProgram) -> tuple[Graph, dict[str, torch.Tensor]]:
    """Compiles a whole program; returns its graph, and the data of its constants by key.

    Raises UnsupportedModelError for an op that is used in a way that MLX does not compute.
    """
    builder = GraphBuilder(program)
    outputs: list[Any] = []
    for node in program.graph.nodes:
        if node.op == "placeholder":
            if constant_of(program, node) is None:
                builder.add_input(node)
        elif node.op == "output":
            outputs = list(node.args[0])
    for node in _calls(program):
        value = HANDLERS[name_of(node)](builder, node)
        if value is not None:
            builder.set(node, value)
    return builder.finish(outputs), builder.weights
