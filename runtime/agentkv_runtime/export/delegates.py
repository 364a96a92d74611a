"""Inspection of a lowered program's delegates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch import fx
from torch.export import ExportedProgram

from agentkv_runtime.errors import UnsupportedModelError

__all__ = ["computes_a_number", "count_calls", "refuse_lone_numbers", "remember_outputs"]


def _calls(program: ExportedProgram) -> Iterator[tuple[fx.Node, LoweredBackendModule]]:
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.higher_order.executorch_call_delegate:
            yield node, getattr(program.graph_module, node.args[0].target)


def count_calls(program: ExportedProgram) -> dict[str, int]:
    """Number of calls of one forward to each backend, by its id."""
    calls: dict[str, int] = {}
    for _, delegate in _calls(program):
        calls[delegate.backend_id] = calls.get(delegate.backend_id, 0) + 1
    return calls


def refuse_lone_numbers(program: ExportedProgram) -> None:
    """Raises UnsupportedModelError for tensors that become a number without dimensions, which XNNPACK cannot read."""
    for node, delegate in _calls(program):
        for arg in node.args[1:]:
            if delegate.backend_id == "XnnpackBackend" and isinstance(arg, fx.Node) and _is_lone(arg):
                raise UnsupportedModelError(f"it computes with a single number ({arg}), which XNNPACK cannot read")


def computes_a_number(node: fx.Node) -> bool:
    """Whether the node computes a number without dimensions, or computes with one."""
    around = (each for each in (node, *node.all_input_nodes) if each.op == "call_function" and _is_tensor(each))
    return any(each.meta["val"].dim() == 0 for each in around)


def _is_lone(node: fx.Node) -> bool:
    dims = [each.meta["val"].dim() for each in (node, *node.all_input_nodes) if _is_tensor(each)]
    return node.op == "call_function" and dims[:1] == [0] and max(dims) > 0


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def remember_outputs(program: ExportedProgram) -> None:
    """Makes delegates return their known outputs, so that passes need not compile and run the replaced graphs."""
    for node, delegate in _calls(program):
        outputs: list[Any] = node.meta["val"]
        delegate.original_module.module = lambda outputs=outputs: lambda *_: list(outputs)
