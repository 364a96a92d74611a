"""Weights of 4, 5 or 8 bits per group of a row: w is about scale * q + bias. Laid out as MLX's quantised products want.

Integers q lie along the row as one string of bits from the lowest up; scales and biases have one column per group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn
from torch.nn import functional

__all__ = [
    "ROWS_AT_ONCE",
    "AffineWeight",
    "Grouped",
    "affine_dequantize",
    "affine_embedding",
    "affine_error",
    "affine_linear",
    "affine_pack",
    "affine_quantize",
    "check_affine",
    "group_size",
]

ROWS_AT_ONCE = 2048
"""Rows that are quantised together, which bounds temporary memory."""
_GROUP_SIZES = (64, 32)

_LIBRARY = torch.library.Library("agentkv", "FRAGMENT")


@dataclass(frozen=True)
class AffineWeight:
    """Rows `[..., I]`: packed `[..., I bits / 32]` uint32, scales and biases `[..., I / group]` in a model's dtype."""

    packed: nn.Parameter
    scales: nn.Parameter
    biases: nn.Parameter
    group: int
    bits: int

    @property
    def nbytes(self) -> int:
        """Bytes of the three parts."""
        return sum(part.nbytes for part in (self.packed, self.scales, self.biases))


Grouped: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Codes uint8 `[O, I]`, scales and biases `[O, I / group]`."""


def group_size(width: int) -> int | None:
    """Numbers of a row that share a scale: the largest group that divides `width`; None if no group does."""
    return next((group for group in _GROUP_SIZES if width % group == 0), None)


def affine_quantize(weight: torch.Tensor, bits: int, group: int, dtype: torch.dtype) -> AffineWeight:
    """Quantises weight `[..., I]` float32. Scales and biases are rounded to `dtype` first and q chosen for those."""
    every = weight.detach().flatten(0, -2)
    pieces = (_quantize_rows(rows, bits, group, dtype) for rows in every.split(ROWS_AT_ONCE))
    return affine_pack(pieces, weight.shape[:-1], group, bits)


def affine_pack(pieces: Iterable[Grouped], shape: Sequence[int], group: int, bits: int) -> AffineWeight:
    """Packs pieces of rows into the weight `[*shape, I]`."""
    packed, scales, biases = (
        nn.Parameter(torch.cat(parts).unflatten(0, tuple(shape)), requires_grad=False)
        for parts in zip(*((_packed(codes, bits), *others) for codes, *others in pieces), strict=True)
    )
    return AffineWeight(packed, scales, biases, group, bits)


def affine_error(made: AffineWeight, weight: torch.Tensor) -> float:
    """Norm of the error of `made`, divided by the norm of `weight`."""
    lost = own = 0.0
    parts = (
        part.flatten(0, -2).split(ROWS_AT_ONCE) for part in (weight.detach(), made.packed, made.scales, made.biases)
    )
    for rows, packed, scales, biases in zip(*parts, strict=True):
        back = affine_dequantize(packed, scales.float(), biases.float(), made.group, made.bits)
        lost += float((back - rows).double().square().sum())
        own += float(rows.double().square().sum())
    return (lost / own) ** 0.5 if own else 0.0


def _quantize_rows(rows: torch.Tensor, bits: int, group: int, dtype: torch.dtype) -> Grouped:
    grouped = rows.float().unflatten(-1, (-1, group))
    low, high = grouped.amin(-1), grouped.amax(-1)
    levels = (1 << bits) - 1
    biases = low.to(dtype)
    scales = ((high - low) / levels).to(dtype)
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    q = (grouped - biases.float()[..., None]).div_(scales.float()[..., None])
    return q.round_().clamp_(0, levels).to(torch.uint8).flatten(-2), scales, biases


def _packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Packs codes `[..., I]` into words `[..., I bits / 32]`; eight codes take `bits` bytes."""
    eights: torch.Tensor = codes.unflatten(-1, (-1, 8)).long() << bits * torch.arange(8)
    joined = eights.sum(-1, keepdim=True).view(torch.uint8)[..., :bits]
    return joined.flatten(-2).contiguous().view(torch.uint32)


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes of `_packed`, int64 `[..., I]`."""
    eights: torch.Tensor = words.view(torch.uint8).unflatten(-1, (-1, bits)).long() << 8 * torch.arange(bits)
    codes: torch.Tensor = eights.sum(-1, keepdim=True) >> bits * torch.arange(8) & (1 << bits) - 1
    return codes.flatten(-2)


def affine_dequantize(
    packed: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, group: int, bits: int
) -> torch.Tensor:
    """Dequantises a matrix or rows of one, `[..., I]` in the dtype of the scales."""
    grouped = _unpacked(packed, bits).unflatten(-1, (-1, group)).to(scales.dtype)
    weight: torch.Tensor = grouped * scales[..., None] + biases[..., None]
    return weight.flatten(-2)


def check_affine(packed: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, group: int, bits: int) -> int:
    """Width of quantised rows. Raises RuntimeError if the parts do not fit each other."""
    width = packed.shape[-1] * 32 // bits
    torch._check(
        scales.shape == biases.shape == (*packed.shape[:-1], width // group),
        lambda: (
            f"{tuple(packed.shape)} words of {bits}-bit codes in groups of {group} do not go with scales"
            f" {tuple(scales.shape)} and biases {tuple(biases.shape)}"
        ),
    )
    return width


def _linear(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    bias: torch.Tensor | None,
    group: int,
    bits: int,
) -> torch.Tensor:
    return functional.linear(x, affine_dequantize(packed, scales, biases, group, bits), bias)


def _check_matrix(packed: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, group: int, bits: int) -> int:
    torch._check(packed.dim() == 2, lambda: f"a matrix has two dimensions, not {packed.dim()}")
    return check_affine(packed, scales, biases, group, bits)


def _linear_fake(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    bias: torch.Tensor | None,
    group: int,
    bits: int,
) -> torch.Tensor:
    width = _check_matrix(packed, scales, biases, group, bits)
    torch._check(x.shape[-1] == width, lambda: f"rows of {x.shape[-1]} meet a matrix whose rows have {width}")
    return x.new_empty((*x.shape[:-1], packed.shape[0]))


def _embedding(
    packed: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, indices: torch.Tensor, group: int, bits: int
) -> torch.Tensor:
    rows = packed.view(torch.int32)[indices].view(torch.uint32)  # torch cannot index unsigned rows
    return affine_dequantize(rows, scales[indices], biases[indices], group, bits)


def _embedding_fake(
    packed: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, indices: torch.Tensor, group: int, bits: int
) -> torch.Tensor:
    return scales.new_empty((*indices.shape, _check_matrix(packed, scales, biases, group, bits)))


for _schema, _kernel, _fake in (
    (
        "affine_linear(Tensor x, Tensor packed, Tensor scales, Tensor biases, Tensor? bias, int group, int bits)"
        " -> Tensor",
        _linear,
        _linear_fake,
    ),
    (
        "affine_embedding(Tensor packed, Tensor scales, Tensor biases, Tensor indices, int group, int bits) -> Tensor",
        _embedding,
        _embedding_fake,
    ),
):
    _name = _schema.partition("(")[0]
    _LIBRARY.define(_schema)
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"agentkv::{_name}", _fake, lib=_LIBRARY)

# x [..., I] in the dtype of scales and bias -> [..., O].
affine_linear = torch.ops.agentkv.affine_linear.default
# indices [...] int64 -> [..., I] in the dtype of the scales.
affine_embedding = torch.ops.agentkv.affine_embedding.default
