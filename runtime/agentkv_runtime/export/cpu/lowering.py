"""The CPU backend's side of an export."""

from __future__ import annotations

from typing import Any

from agentkv_runtime.export.cpu.feed_forward import replace_feed_forward
from agentkv_runtime.export.cpu.norms import linear_norms
from agentkv_runtime.export.cpu.partition import ProgramPartitioner
from agentkv_runtime.export.cpu.quantize import quantize
from agentkv_runtime.export.norms import replace_norms
from agentkv_runtime.export.target import Lowering
from agentkv_runtime.manifest import DType, Quantization

__all__ = ["LOWERING"]


class _CpuLowering:
    title = "XNNPACK and the attention delegate"

    def prepare(self, model: Any, quant: Quantization, dtype: DType) -> None:
        del dtype  # float32, the only one
        replace_norms(model, linear_norms)
        replace_feed_forward(model)
        quantize(model, quant)

    def partitioner(self) -> ProgramPartitioner:
        return ProgramPartitioner()


LOWERING: Lowering = _CpuLowering()
