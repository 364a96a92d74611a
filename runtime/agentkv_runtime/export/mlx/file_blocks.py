"""The blocks of a GGUF file as affine weights of the same codes, where 32 numbers of a row share a scale and a base.

The layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. A number is scale * code + bias, as in MLX;
types without a base of their own get that of code 0. Scales and biases are the file's in float32, rounded if a
program's dtype is narrower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Q

from agentkv_runtime.export.mlx.affine import ROWS_AT_ONCE, AffineWeight, Grouped, affine_pack
from agentkv_runtime.hf.blocks import Blocks

__all__ = ["FLOATS", "GROUP", "affine_blocks", "is_affine"]

GROUP = 32
FLOATS = (Q.F32, Q.F16, Q.BF16)
"""Types of floats, not codes."""


def _halves(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The half-precision number at byte `at` of each block, float32 `[..., 1]`."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor, run: int) -> torch.Tensor:
    """Unpacks bytes with `run` codes in their low halves and the next `run` in their high ones."""
    runs = packed.unflatten(-1, (-1, run))
    return torch.cat((runs & 15, runs >> 4), -1).flatten(-2)


def _bits(packed: torch.Tensor) -> torch.Tensor:
    """The bits of each byte, `[..., 8]`, the lowest first."""
    return packed[..., None] >> torch.arange(8, dtype=torch.uint8) & 1


def _fives(packed: torch.Tensor) -> torch.Tensor:
    """Unpacks codes of 5 bits, stored as all highest bits first, then the low ones."""
    return _nibbles(packed[..., 4:], 16) | _bits(packed[..., :4]).flatten(-2) << 4


def _q4_0(blocks: torch.Tensor) -> Grouped:
    scale = _halves(blocks, 0)
    return _nibbles(blocks[..., 2:], 16), scale, -8 * scale


def _q4_1(blocks: torch.Tensor) -> Grouped:
    return _nibbles(blocks[..., 4:], 16), _halves(blocks, 0), _halves(blocks, 2)


def _q5_0(blocks: torch.Tensor) -> Grouped:
    scale = _halves(blocks, 0)
    return _fives(blocks[..., 2:]), scale, -16 * scale


def _q5_1(blocks: torch.Tensor) -> Grouped:
    return _fives(blocks[..., 4:]), _halves(blocks, 0), _halves(blocks, 2)


def _q8_0(blocks: torch.Tensor) -> Grouped:
    scale = _halves(blocks, 0)
    return blocks[..., 2:] ^ 128, scale, -128 * scale  # int8 + 128


def _nested(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and biases of the 8 groups of a block: 6 bits each, times the block's own."""
    first, second, mixed = blocks[..., 4:16].unflatten(-1, (3, 4)).unbind(-2)
    scales = torch.cat((first & 63, mixed & 15 | first >> 6 << 4), -1)
    minima = torch.cat((second & 63, mixed >> 4 | second >> 6 << 4), -1)
    return _halves(blocks, 0) * scales, -_halves(blocks, 2) * minima


def _q4_k(blocks: torch.Tensor) -> Grouped:
    return _nibbles(blocks[..., 16:], 32), *_nested(blocks)


def _q5_k(blocks: torch.Tensor) -> Grouped:
    highest = _bits(blocks[..., 16:48]).transpose(-1, -2).flatten(-2)  # bit i of a byte is of group i
    return _nibbles(blocks[..., 48:], 32) | highest << 4, *_nested(blocks)


_READERS: dict[int, tuple[int, Callable[[torch.Tensor], Grouped]]] = {
    Q.Q4_0: (4, _q4_0),
    Q.Q4_1: (4, _q4_1),
    Q.Q5_0: (5, _q5_0),
    Q.Q5_1: (5, _q5_1),
    Q.Q8_0: (8, _q8_0),
    Q.Q4_K: (4, _q4_k),
    Q.Q5_K: (5, _q5_k),
}
"""Bits of a code and reader of blocks `[..., bytes of a block]`, by type."""


def is_affine(blocks: Blocks) -> bool:
    """Whether each group of codes has a scale and a base, as in MLX."""
    return blocks.type in _READERS


def affine_blocks(blocks: Blocks, shape: Sequence[int], dtype: torch.dtype) -> AffineWeight:
    """Converts blocks into the affine weight `[*shape, I]` of the same codes; scales and biases become `dtype`."""
    bits, read = _READERS[blocks.type]
    size = GGML_QUANT_SIZES[Q(blocks.type)][1]

    def piece(rows: torch.Tensor) -> Any:
        codes, scales, biases = (part.flatten(-2) for part in read(rows.unflatten(-1, (-1, size))))
        return codes, scales.to(dtype), biases.to(dtype)

    every = blocks.load().reshape(-1, blocks.row_bytes)
    return affine_pack(map(piece, every.split(ROWS_AT_ONCE)), shape, GROUP, bits)
