"""The rows of a weight as bytes of blocks."""

from __future__ import annotations

import torch

from agentkv_runtime.export.blocks.grids import fit_grid
from agentkv_runtime.export.blocks.kinds import KINDS, Kind
from agentkv_runtime.export.blocks.packing import pack_blocks
from agentkv_runtime.export.quantization import QuantizationError
from agentkv_runtime.export.threads import one_thread

__all__ = ["check_finite", "quantize_rows", "relative_importance"]

_BLOCK = 1 << 17  # numbers that are worked on at a time: temporaries stay in the processor's caches
_LEAST = 0.01  # of the mean: what a channel counts that the calibration text never used


def relative_importance(importance: torch.Tensor | None, inputs: int) -> torch.Tensor:
    """float32 `[I]`: what an error counts in each channel beside the mean; ones where nothing was measured."""
    if importance is None or not importance.any():
        return torch.ones(inputs)
    return importance.float() / importance.float().mean() + _LEAST


@one_thread()
def quantize_rows(weight: torch.Tensor, kind: str, importance: torch.Tensor | None = None) -> torch.Tensor:
    """The bytes of a weight's rows as blocks of one of `KINDS`.

    `weight` is `[O, I]` of any float dtype; `importance`, `[I]`, what the square of an error in each channel counts
    (see `measure_importance`). The result is uint8 `[O, bytes]`. Steps and bases have the least weighted squared error
    that a search over ranges and least squares over its codes find, as half precision and 6 bits then leave them.
    Few rows are worked on at a time. Raises QuantizationError for a width that is no multiple of the kind's block, and
    for numbers that are not finite.
    """
    of = _fitting(weight, kind)
    outputs, inputs = weight.shape
    counts = relative_importance(importance, inputs)
    packed = torch.empty((outputs, of.row_bytes(inputs)), dtype=torch.uint8)
    height = max(1, _BLOCK // inputs)
    for start in range(0, outputs, height):
        rows = weight[start : start + height].detach().float()
        check_finite(rows)
        groups = rows.reshape(-1, of.block // of.group, of.group)
        grid = fit_grid(of, groups, counts.expand_as(rows).reshape(groups.shape))
        packed[start : start + height] = pack_blocks(grid, grid.codes(groups)).view(len(rows), -1)
    return packed


def check_finite(rows: torch.Tensor) -> None:
    """Raises QuantizationError for numbers that are not finite."""
    if not rows.isfinite().all():
        raise QuantizationError("the weight holds infinities or NaN: its file is broken. Download it again")


def _fitting(weight: torch.Tensor, kind: str) -> Kind:
    of = KINDS[kind]
    if weight.ndim != 2 or weight.shape[1] % of.block:
        raise QuantizationError(
            f"a weight of shape {tuple(weight.shape)} does not fit {kind}, whose blocks are of {of.block} numbers. "
            "Choose a kind whose block divides its rows"
        )
    return of
