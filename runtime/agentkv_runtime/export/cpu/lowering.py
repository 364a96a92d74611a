"""The CPU backend's side of an export."""

from __future__ import annotations

from typing import Any

from torch.export import ExportedProgram

from agentkv_runtime.export.cpu.feed_forward import replace_feed_forward, replace_gates
from agentkv_runtime.export.cpu.norms import linear_norms, row_norms
from agentkv_runtime.export.cpu.packing import name_xnnpack
from agentkv_runtime.export.cpu.partition import ProgramPartitioner
from agentkv_runtime.export.cpu.quantize import quantize
from agentkv_runtime.export.cpu.spell import spell_others
from agentkv_runtime.export.experts import own_expert_layers
from agentkv_runtime.export.norms import replace_norms
from agentkv_runtime.export.quantization import Recipe
from agentkv_runtime.export.target import Lowering, Passes
from agentkv_runtime.folder.manifest import DType

__all__ = ["LOWERING"]


class _CpuLowering:
    title = "XNNPACK and the attention delegate"
    passes: Passes = (spell_others,)

    def prepare(self, model: Any, recipe: Recipe, dtype: DType) -> None:
        del dtype  # float32, the only one
        quantized = recipe.quant != "none"
        replace_norms(model, row_norms if quantized else linear_norms)
        own_expert_layers(model)
        replace_feed_forward(model)
        replace_gates(model, quantized)
        quantize(model, recipe)

    def partitioner(self) -> ProgramPartitioner:
        return ProgramPartitioner()

    def finish(self, program: ExportedProgram) -> None:
        name_xnnpack(program)


LOWERING: Lowering = _CpuLowering()
