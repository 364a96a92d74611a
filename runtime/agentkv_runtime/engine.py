"""The step loop of the native module, as the SDK sees it."""

from agentkv_runtime._core import (
    Emitted,
    Engine,
    Finished,
    GenerateOptions,
    LogChange,
    Pin,
    PolicyOptions,
    Sampling,
    Stats,
    StepReport,
    StoredBranch,
)

__all__ = [
    "Emitted",
    "Engine",
    "Finished",
    "GenerateOptions",
    "LogChange",
    "Pin",
    "PolicyOptions",
    "Sampling",
    "Stats",
    "StepReport",
    "StoredBranch",
]
