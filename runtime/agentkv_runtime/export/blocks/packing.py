"""Codes and grids as the bytes of GGUF's blocks."""

from __future__ import annotations

import torch

from agentkv_runtime.export.blocks.grids import Grid

__all__ = ["pack_blocks"]


def pack_blocks(grid: Grid, codes: torch.Tensor) -> torch.Tensor:
    """uint8 `[B, size]` of codes `[B, G, N]`."""
    kind = grid.kind
    flat = codes.reshape(len(codes), kind.block).to(torch.uint8)
    outer = grid.outer.contiguous().view(torch.uint8)
    if kind.top == 254:
        return torch.cat([outer, flat - 127], -1)  # int8 in two's complement
    if kind.top == 63:
        return torch.cat([_low(flat, 64), _pairs_of_bits(flat), grid.inner.to(torch.int8).view(torch.uint8), outer], -1)
    if kind.nested:
        parts = [outer, _six_bits(grid.inner), *([_high_planes(flat)] if kind.top == 31 else []), _low(flat, 32)]
        return torch.cat(parts, -1)
    return torch.cat([outer, *([_high_bits(flat)] if kind.top == 31 else []), _low(flat, 16)], -1)


def _low(flat: torch.Tensor, half: int) -> torch.Tensor:
    """The low four bits: of each run of `2 * half` codes, the first half below the second."""
    runs = (flat & 15).view(len(flat), -1, 2, half)
    return (runs[:, :, 0] | (runs[:, :, 1] << 4)).flatten(1)


def _high_bits(flat: torch.Tensor) -> torch.Tensor:
    """The fifth bits of 32 codes, little endian."""
    bits = (flat >> 4).view(len(flat), 4, 8) << torch.arange(8, dtype=torch.uint8)
    return bits.sum(-1, dtype=torch.uint8)


def _high_planes(flat: torch.Tensor) -> torch.Tensor:
    """The fifth bits of 256 codes: byte `l` has those of the codes `32 * bit + l`."""
    bits = (flat >> 4).view(len(flat), 8, 32) << torch.arange(8, dtype=torch.uint8)[:, None]
    return bits.sum(1, dtype=torch.uint8)


def _pairs_of_bits(flat: torch.Tensor) -> torch.Tensor:
    """The fifth and sixth bits of 256 codes: of each 128, byte `l` has those of the codes `32 * pair + l`."""
    pairs = (flat >> 4).view(len(flat), 2, 4, 32) << torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    return pairs.sum(2, dtype=torch.uint8).flatten(1)


def _six_bits(inner: torch.Tensor) -> torch.Tensor:
    """Eight steps and eight bases of six bits as 12 bytes: the first four of each whole, the others in parts."""
    step, base = inner.to(torch.uint8).unbind(-1)
    whole = [part[:, :4] | ((part[:, 4:] >> 4) << 6) for part in (step, base)]
    return torch.cat([*whole, (step[:, 4:] & 15) | ((base[:, 4:] & 15) << 4)], -1)
