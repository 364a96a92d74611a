"""Formats of rows of K and V in torch pools: floats, or codes with a scale per row, as in the CPU byte layer.

A row of codes is integers of [-127, 127] times one float32 scale, in a basis that spreads outliers of one channel
over all: random signs, then a Hadamard transform (QuaRot, Ashkboos et al. 2024), fixed by head_dim. int8 keeps the
integers, int4 keeps indices of 16 levels (Lloyd-Max for the normal distribution, as TurboQuant, Zandieh et al. 2025).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from agentkv_runtime.hf.dtypes import TORCH_DTYPES

__all__ = ["CodeRows", "FloatRows", "Rows", "rows_of"]

SIGN_BITS = (
    (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
    (0x452821E638D01377, 0xBE5466CF34E90C6C, 0xC0AC29B7C97C50DD, 0x3F84D5B5B5470917),
)
"""Signs of coordinates: bit i % 256 negates coordinate i. The bits are the fraction of pi."""
LEVELS = (6, 18, 31, 44, 58, 75, 96, 127)
"""Positive levels of int4; the negative ones mirror them."""
THRESHOLDS = (0.2582, 0.5224, 0.7996, 1.0993, 1.4371, 1.8435, 2.4008)
"""Thresholds between the levels, in standard deviations."""
TINY = 2.0**-100
LANES = 16


class Rows(ABC):
    """A format of rows: a plane of numbers, and for codes a plane of scales."""

    planes: tuple[torch.dtype, ...]
    names: tuple[tuple[str, str], ...]
    """Suffix of each plane's name in files, after the pool's name, and its dtype in safetensors."""

    @abstractmethod
    def widths(self, dim: int) -> tuple[int, ...]:
        """Numbers per row of each plane."""

    @abstractmethod
    def encode(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Encodes rows `[..., dim]` into planes `[..., width]`."""

    @abstractmethod
    def decode(self, planes: tuple[torch.Tensor, ...], dim: int, dtype: torch.dtype) -> torch.Tensor:
        """Decodes rows `[..., dim]`, in the basis of `turn`."""

    def turn(self, rows: torch.Tensor) -> torch.Tensor:
        """Transforms queries `[..., dim]` into the basis of the rows."""
        return rows

    def turn_back(self, rows: torch.Tensor) -> torch.Tensor:
        """Transforms sums of values `[..., dim]` back into the model's basis."""
        return rows


class FloatRows(Rows):
    """Rows in a floating dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.planes = (dtype,)
        self.names = (("", {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}[dtype]),)

    def widths(self, dim: int) -> tuple[int, ...]:
        """`dim` numbers in the only plane."""
        return (dim,)

    def encode(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Rounds to nearest; float16 saturates, so that one outlier cannot turn a whole row into NaN."""
        if self.planes[0] == torch.float16:
            rows = rows.clamp(-65504, 65504)
        return (rows.to(self.planes[0]),)

    def decode(self, planes: tuple[torch.Tensor, ...], dim: int, dtype: torch.dtype) -> torch.Tensor:
        """Converts the numbers."""
        return planes[0].to(dtype)


class CodeRows(Rows):
    """Rows as codes of 8 or 4 bits and a float32 scale."""

    planes = (torch.uint8, torch.float32)

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.names = ((".codes", "I8" if bits == 8 else "U8"), (".scales", "F32"))

    def widths(self, dim: int) -> tuple[int, ...]:
        """Bytes of codes, of which int4 packs 32 into 16, and one scale."""
        return (dim if self.bits == 8 else (dim + 31) // 32 * 16, 1)

    def encode(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Transforms and quantises rows; a row that is not finite becomes zeros with the scale NaN."""
        turned = self.turn(rows.float())
        finite = turned.isfinite().all(-1, keepdim=True)
        codes, scales = (_int8 if self.bits == 8 else _int4)(turned.where(finite, 0))
        return codes, scales.where(finite, float("nan"))

    def decode(self, planes: tuple[torch.Tensor, ...], dim: int, dtype: torch.dtype) -> torch.Tensor:
        """Codes times scales, in the basis of `turn`."""
        codes, scales = planes
        if self.bits == 8:
            return (codes.view(torch.int8).float() * scales).to(dtype)
        blocks = codes.unflatten(-1, (-1, 16))
        nibbles = torch.cat((blocks & 15, blocks >> 4), -1).flatten(-2)[..., :dim]
        levels = torch.tensor([*LEVELS, *(-level for level in LEVELS)], dtype=torch.float32, device=codes.device)
        return (levels[nibbles.int()] * scales).to(dtype)

    def turn(self, rows: torch.Tensor) -> torch.Tensor:
        """Applies the orthogonal transform: one of all coordinates, or two that overlap if dim is no power of two."""
        dim = rows.shape[-1]
        n = 1 << (dim.bit_length() - 1)
        rows = torch.cat((_hadamard(rows[..., :n] * _signs(0, n, rows.device)), rows[..., n:]), -1)
        if n == dim:
            return rows
        last = _hadamard(rows[..., dim - n :] * _signs(1, n, rows.device))
        return torch.cat((rows[..., : dim - n], last), -1)

    def turn_back(self, rows: torch.Tensor) -> torch.Tensor:
        """Applies the inverse of `turn`."""
        dim = rows.shape[-1]
        n = 1 << (dim.bit_length() - 1)
        if n != dim:
            last = _hadamard(rows[..., dim - n :]) * _signs(1, n, rows.device)
            rows = torch.cat((rows[..., : dim - n], last), -1)
        return torch.cat((_hadamard(rows[..., :n]) * _signs(0, n, rows.device), rows[..., n:]), -1)


def rows_of(dtype: str) -> Rows:
    """The format of a dtype of keys or of values."""
    if dtype in TORCH_DTYPES:
        return FloatRows(TORCH_DTYPES[dtype])
    return CodeRows({"int8": 8, "int4": 4}[dtype])


def _signs(which: int, n: int, device: torch.device) -> torch.Tensor:
    signs = [-1.0 if SIGN_BITS[which][i // 64 % 4] >> (i % 64) & 1 else 1.0 for i in range(n)]
    return torch.tensor(signs, dtype=torch.float32, device=device) * (1 / torch.tensor(float(n)).sqrt())


def _hadamard(rows: torch.Tensor) -> torch.Tensor:
    n = rows.shape[-1]
    for _ in range(n.bit_length() - 1):
        a, b = rows[..., : n // 2], rows[..., n // 2 :]
        rows = torch.stack((a + b, a - b), -1).flatten(-2)
    return rows


def _int8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    largest = rows.abs().amax(-1, keepdim=True)
    zeros = largest < TINY
    inverse = 127 / largest.where(~zeros, 1)
    codes = (rows * inverse).round().where(~zeros, 0).to(torch.int8).view(torch.uint8)
    return codes, (largest * (1 / torch.tensor(127.0, device=rows.device))).where(~zeros, 0)


def _int4(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    dim = rows.shape[-1]
    deviation = (_sum(rows * rows) / dim).sqrt()
    zeros = deviation < TINY
    inverse = 1 / deviation.where(~zeros, 1)
    scaled = rows * inverse
    index = torch.bucketize(scaled.abs(), torch.tensor(THRESHOLDS, device=rows.device))
    levels = torch.tensor(LEVELS, dtype=torch.float32, device=rows.device)[index]
    levels = levels.where(scaled >= 0, -levels)
    scale = _sum(rows * levels) / (levels * levels).sum(-1, keepdim=True)
    nibbles = (index + 8 * (scaled < 0)).where(~zeros, 0).to(torch.uint8)
    blocks = torch.nn.functional.pad(nibbles, (0, -dim % 32)).unflatten(-1, (-1, 2, 16))
    return (blocks[..., 0, :] | blocks[..., 1, :] << 4).flatten(-2), scale.where(~zeros, 0)


def _sum(rows: torch.Tensor) -> torch.Tensor:
    # In the order of the CPU's kernels, so that a level is picked by the same bits.
    lanes = torch.nn.functional.pad(rows, (0, -rows.shape[-1] % LANES)).unflatten(-1, (-1, LANES))
    total: torch.Tensor = lanes[..., 0, :]
    for i in range(1, lanes.shape[-2]):
        total = total + lanes[..., i, :]
    while total.shape[-1] > 1:
        half = total.shape[-1] // 2
        total = total[..., :half] + total[..., half:]
    return total
