"""What lowering leaves out because it would change nothing, changes nothing."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from agentkv_runtime.export import program
from agentkv_runtime.export.cpu import packing, partition
from agentkv_runtime.export.decomposition import DecomposingPartitioner
from agentkv_runtime.export.lower import lower_model
from executorch.backends.xnnpack import xnnpack_preprocess
from executorch.exir.backend.partitioner import PartitionResult
from torch.export import ExportedProgram, export

from tests.models import tiny_model, tiny_spec
from tests.rows import one_in


def lowered(kind: str, quant: Any) -> bytes:
    model = tiny_model(tiny_spec(kind, layers=2))
    return lower_model(model, quant=quant, max_tokens=8, max_logits=8).buffer


@pytest.mark.parametrize(("kind", "quant"), one_in(2, [("qwen3", "8da4w"), ("gemma3", "none")]))
def test_the_program_is_that_of_all_of_executorchs_work(kind: str, quant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    short = lowered(kind, quant)

    class Recompiling(partition.ProgramPartitioner):
        def partition(self, exported_program: ExportedProgram) -> PartitionResult:
            result = super().partition(exported_program)
            del result.tagged_exported_program.graph_module.recompile
            return result

    monkeypatch.setattr(packing, "_passes_if_needed", nullcontext)
    monkeypatch.setattr(DecomposingPartitioner, "transform_for_pre_decomposition", lambda _, program: program)
    monkeypatch.setattr(program, "retraced_once", nullcontext)
    monkeypatch.setattr(program, "remember_outputs", lambda _: None)
    monkeypatch.setattr("agentkv_runtime.export.cpu.lowering.ProgramPartitioner", Recompiling)
    assert lowered(kind, quant) == short


class _Products(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, x)


def test_matrix_products_still_become_linear_layers() -> None:
    from executorch.exir import to_edge

    def manager_for(module: torch.nn.Module) -> object:
        edge = to_edge(export(module, (torch.ones(4, 4),))).exported_program()
        with packing._passes_if_needed(edge):
            return xnnpack_preprocess.XNNPACKPassManager

    whole = xnnpack_preprocess.XNNPACKPassManager
    assert manager_for(_Products()) is whole
    assert manager_for(torch.nn.ReLU()) is not whole
    assert xnnpack_preprocess.XNNPACKPassManager is whole
