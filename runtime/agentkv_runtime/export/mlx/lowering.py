"""The MLX backend's side of an export."""

from __future__ import annotations

from typing import Any

from torch.export import ExportedProgram

from agentkv_runtime.export.mlx.partition import WholeProgramPartitioner
from agentkv_runtime.export.mlx.prepare import prepare
from agentkv_runtime.export.quantization import Recipe
from agentkv_runtime.export.target import Lowering, Passes
from agentkv_runtime.hf.deferred import load_all
from agentkv_runtime.manifest import DType

__all__ = ["LOWERING"]


class _MlxLowering:
    title = "MLX"
    passes: Passes = ()

    def prepare(self, model: Any, recipe: Recipe, dtype: DType) -> None:
        load_all(model)
        prepare(model, recipe.quant, dtype)

    def partitioner(self) -> WholeProgramPartitioner:
        return WholeProgramPartitioner()

    def finish(self, program: ExportedProgram) -> None:
        del program  # it is as it should be


LOWERING: Lowering = _MlxLowering()
