"""The MLX backend's side of an export."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.export import ExportedProgram

from agentkv_runtime.export.mlx.partition import WholeProgramPartitioner
from agentkv_runtime.export.mlx.prepare import prepare
from agentkv_runtime.export.quantization import Recipe
from agentkv_runtime.export.target import Lowering, Passes
from agentkv_runtime.folder.manifest import DType
from agentkv_runtime.hf.deferred import load_all

__all__ = ["LOWERING"]


def _tied_linears(model: Any) -> list[str]:
    """Names of linear layers over the embedding's table, which the program has once."""
    table = model.get_input_embeddings().weight
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module.weight is table]


class _MlxLowering:
    title = "MLX"
    passes: Passes = ()

    def prepare(self, model: Any, recipe: Recipe, dtype: DType) -> None:
        load_all(model)
        for name in _tied_linears(model):
            recipe.counts.pop(name, None)
            recipe.bytes.pop(name, None)
        prepare(model, recipe, dtype)

    def partitioner(self) -> WholeProgramPartitioner:
        return WholeProgramPartitioner()

    def finish(self, program: ExportedProgram) -> None:
        del program  # it is as it should be


LOWERING: Lowering = _MlxLowering()
