"""Quantisation of weights to integers and scales of XNNPACK's kernels: symmetric, a scale per group of a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine

from agentkv_runtime.export.threads import one_thread
from agentkv_runtime.folder.manifest import Scales

__all__ = ["Quantized", "quantized_weight"]

_BLOCK = 1 << 18  # weights that are worked on at a time: temporaries stay in the processor's caches
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.74)
_BOUNDS = {4: (-8, 7), 8: (-128, 127)}


@dataclass(frozen=True)
class Quantized:
    """A quantised weight `[O, I]`."""

    codes: torch.Tensor
    """Codes, int8 `[O, I]`; -8 to 7 at 4 bits."""
    scales: torch.Tensor
    """Scales, float32 `[O, I / group]`."""
    error: float
    """Norm of the error divided by the norm of the weight."""


def _rounded(groups: torch.Tensor, scales: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes of groups `[O, G, N]` with scales `[O, G]`, as float32."""
    low, high = _BOUNDS[bits]
    return (groups * (1 / scales).unsqueeze(-1)).round_().clamp_(low, high)


def _largest(rows: torch.Tensor, block: tuple[int, int], bits: int) -> torch.Tensor:
    """Scales with which the largest weight of each group becomes the largest code."""
    low, high = _BOUNDS[bits]
    scales, _ = choose_qparams_affine(
        rows, MappingType.SYMMETRIC, block, torch.int8, low, high, zero_point_dtype=torch.int8, keepdim=True
    )
    return cast(torch.Tensor, scales)


def _searched(rows: torch.Tensor, block: tuple[int, int], bits: int) -> torch.Tensor:
    """Scales of the least squared error per group: of codes that clip ever more, those that least squares fits best.

    What counts is the scale that the kernel sees: for groups XNNPACK keeps it as bfloat16.
    """
    groups = rows.view(rows.shape[0], -1, block[1])
    most = _largest(rows, block, bits)
    best, least = most.to(torch.bfloat16).float(), torch.full_like(most, torch.inf)
    for shrink in _SHRINKS:
        codes = _rounded(groups, most * shrink, bits)
        along, squares = (codes * groups).sum(-1), codes.square_().sum(-1)
        scales = (along / squares).to(torch.bfloat16).float()
        lost = scales * (scales * squares - 2 * along)  # beside the group's own squares
        better = (lost < least) & (along > 0)  # a group of zeros has no such codes
        best, least = torch.where(better, scales, best), torch.where(better, lost, least)
    return best


def _blocks(weight: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    step = max(1, _BLOCK // weight.shape[1])
    for start in range(0, weight.shape[0], step):
        rows = slice(start, start + step)
        yield rows, weight[rows].float().contiguous()


@one_thread()
def quantized_weight(weight: torch.Tensor, bits: int, group: int, scales: Scales) -> Quantized:
    """Quantises a weight `[O, I]` of any float dtype to 4 or 8 bits, `group` numbers of a row to a scale.

    "largest" makes the largest number of a group its largest code (round to nearest); "search" finds the scales of the
    least squared error. Works on few rows at a time, so that a large weight takes little more memory than its result.
    """
    outputs, inputs = weight.shape
    codes = torch.empty((outputs, inputs), dtype=torch.int8)
    found = torch.empty((outputs, inputs // group))
    lost = total = 0.0
    choose = _searched if scales == "search" else _largest
    for rows, values in _blocks(weight):
        found[rows] = choose(values, (1, group), bits)
        groups = values.view(len(values), -1, group)
        rounded = _rounded(groups, found[rows], bits)
        codes[rows] = rounded.view_as(values)
        total += float(groups.square().sum())
        lost += float(rounded.mul_(found[rows].unsqueeze(-1)).sub_(groups).square_().sum())
    return Quantized(codes, found, (lost / total) ** 0.5 if total else 0.0)
