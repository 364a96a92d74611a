"""The MLX backend's side of an export."""

from __future__ import annotations

from typing import Any

from agentkv_runtime.export.mlx.partition import WholeProgramPartitioner
from agentkv_runtime.export.mlx.prepare import prepare
from agentkv_runtime.export.target import Lowering
from agentkv_runtime.manifest import DType, Quantization

__all__ = ["LOWERING"]


class _MlxLowering:
    title = "MLX"

    def prepare(self, model: Any, quant: Quantization, dtype: DType) -> None:
        prepare(model, quant, dtype)

    def partitioner(self) -> WholeProgramPartitioner:
        return WholeProgramPartitioner()


LOWERING: Lowering = _MlxLowering()
