"""The delegates of a program that was lowered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch import fx
from torch.export import ExportedProgram

from agentkv_runtime.errors import UnsupportedModelError

__all__ = ["count_calls", "refuse_lone_numbers", "remember_outputs"]


def _calls(program: ExportedProgram) -> Iterator[tuple[fx.Node, LoweredBackendModule]]:
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.higher_order.executorch_call_delegate:
            yield node, getattr(program.graph_module, node.args[0].target)


def count_calls(program: ExportedProgram) -> dict[str, int]:
    """Calls of one forward to each backend."""
    calls: dict[str, int] = {}
    for _, delegate in _calls(program):
        calls[delegate.backend_id] = calls.get(delegate.backend_id, 0) + 1
    return calls


def refuse_lone_numbers(program: ExportedProgram) -> None:
    """Raises UnsupportedModelError for a number without dimensions that is computed for XNNPACK, which reads none."""
    for node, delegate in _calls(program):
        for arg in node.args[1:]:
            value = arg.meta.get("val") if isinstance(arg, fx.Node) and arg.op == "call_function" else None
            if isinstance(value, torch.Tensor) and value.dim() == 0 and delegate.backend_id == "XnnpackBackend":
                raise UnsupportedModelError(
                    f"the model computes with a single number ({arg}), which XNNPACK cannot read"
                )


def remember_outputs(program: ExportedProgram) -> None:
    """Spares ExecuTorch to compile and run what each delegate replaced, once a pass, only for the shapes it returns."""
    for node, delegate in _calls(program):
        outputs: list[Any] = node.meta["val"]
        delegate.original_module.module = lambda outputs=outputs: lambda *_: list(outputs)
