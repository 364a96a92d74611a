"""Weights as blocks of GGUF's types, made well: which type a layer gets, and the bytes of its rows."""

from agentkv_runtime.export.blocks.importance import (
    calibration_text,
    calibration_windows,
    measure_importance,
    windows_of,
)
from agentkv_runtime.export.blocks.plan import BlockPlan, plan_blocks
from agentkv_runtime.export.blocks.rows import quantize_rows

__all__ = [
    "BlockPlan",
    "calibration_text",
    "calibration_windows",
    "measure_importance",
    "plan_blocks",
    "quantize_rows",
    "windows_of",
]
