"""The rows of a weight as bytes of blocks. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from agentkv_runtime._core import InvalidTensor, block_types, quantize_blocks
from agentkv_runtime.errors import QuantizationError

__all__ = ["TYPE_IDS", "Floats", "Numbers", "Quantized", "quantize_rows", "relative_importance"]

Numbers: TypeAlias = npt.NDArray[Any]
"""Of a weight: float32, float16, or bfloat16 as its bits in uint16."""
Floats: TypeAlias = npt.NDArray[np.float32]

TYPE_IDS = {name: kind for kind, name, _, _ in block_types()}
_LEAST = 0.01  # of the mean: what a channel counts that the calibration text never used


@dataclass(frozen=True)
class Quantized:
    """What a weight, or some of its rows, became."""

    rows: npt.NDArray[np.uint8]
    """`[O, bytes]`."""
    lost: float
    """The squares of all errors, summed."""
    whole: float
    """The squares of all numbers, summed."""

    @property
    def error(self) -> float:
        """The norm of what was lost, as a part of the weight's."""
        return float((self.lost / self.whole) ** 0.5) if self.whole else 0.0


def relative_importance(importance: Floats | None) -> Floats | None:
    """float32 `[I]`: what an error counts in each channel beside the mean; None where nothing was measured."""
    if importance is None or not importance.any():
        return None
    relative: Floats = (importance / importance.mean() + np.float32(_LEAST)).astype(np.float32)
    return relative


def quantize_rows(numbers: Numbers, kind: str, importance: Floats | None = None) -> Quantized:
    """A weight's rows `[O, I]` as blocks of one of `KINDS`, or as "bf16".

    `importance`, `[I]`, is what the square of an error in each channel counts. Steps and bases have the least weighted
    squared error that a search over ranges and least squares over its codes find, as half precision and 6 bits then
    leave them. A row's bytes depend on nothing but the row. Raises QuantizationError for a width that is no multiple of
    the kind's block, and for numbers that are not finite.
    """
    try:
        return Quantized(*quantize_blocks(numbers, TYPE_IDS[kind], relative_importance(importance)))
    except InvalidTensor as error:
        raise QuantizationError(f"a weight of shape {numbers.shape} does not become {kind}: {error}") from error
