"""Quantisation of a weight's rows into blocks. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from agentkv_runtime._core import InvalidTensor, block_types, quantize_blocks
from agentkv_runtime.errors import QuantizationError

__all__ = ["TYPE_IDS", "Floats", "Numbers", "Quantized", "quantize_rows", "relative_importance"]

Numbers: TypeAlias = npt.NDArray[Any]
"""Numbers of a weight: float32, float16, or the bits of bfloat16 as uint16."""
Floats: TypeAlias = npt.NDArray[np.float32]

TYPE_IDS = {name: kind for kind, name, _, _ in block_types()}
_LEAST = 0.01  # of the mean: what a channel counts that the calibration text never used


@dataclass(frozen=True)
class Quantized:
    """Quantised rows of a weight, and their error."""

    rows: npt.NDArray[np.uint8]
    """Blocks, uint8 `[O, bytes]`."""
    lost: float
    """Sum of the squares of all errors."""
    whole: float
    """Sum of the squares of all numbers."""

    @property
    def error(self) -> float:
        """Norm of the error divided by the norm of the numbers."""
        return float((self.lost / self.whole) ** 0.5) if self.whole else 0.0


def relative_importance(importance: Floats | None) -> Floats | None:
    """Importance of each channel divided by the mean, float32 `[I]`; None without a measurement."""
    if importance is None or not importance.any():
        return None
    relative: Floats = (importance / importance.mean() + np.float32(_LEAST)).astype(np.float32)
    return relative


def quantize_rows(numbers: Numbers, kind: str, importance: Floats | None = None) -> Quantized:
    """Quantises a weight's rows `[O, I]` into blocks of one of `KINDS`, or rounds them to "bf16".

    `importance` `[I]` weighs the squared errors of channels. Steps and bases are the weighted least-squares fit to the
    codes of the best of a few ranges, refitted once after they are rounded to half precision and 6 bits. A row's bytes
    depend on that row alone. Raises QuantizationError for a width that is no multiple of the kind's block, and for
    numbers that are not finite.
    """
    try:
        return Quantized(*quantize_blocks(numbers, TYPE_IDS[kind], relative_importance(importance)))
    except InvalidTensor as error:
        raise QuantizationError(f"a weight of shape {numbers.shape} does not become {kind}: {error}") from error
