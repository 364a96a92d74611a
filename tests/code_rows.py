"""Rows as int8 and int4 pools of the CPU and torch backends keep them, in NumPy: what both are checked against.

Every step is one float32 operation, in the order of `cpp/cpu/kernels/codes.h`, so that codes are equal and not near.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float32]
Double = npt.NDArray[np.float64]

PI = (
    "243f6a8885a308d3 13198a2e03707344 a4093822299f31d0 082efa98ec4e6c89 "
    "452821e638d01377 be5466cf34e90c6c c0ac29b7c97c50dd 3f84d5b5b5470917"
)
SIGNS = np.array([1.0 - 2.0 * (int(word, 16) >> bit & 1) for word in PI.split() for bit in range(64)], np.float32)
LEVELS = np.array([6, 18, 31, 44, 58, 75, 96, 127], np.float32)
THRESHOLDS = np.array([0.2582, 0.5224, 0.7996, 1.0993, 1.4371, 1.8435, 2.4008], np.float32)


def turned(rows: Float) -> Float:
    """Rows `[..., dim]` in the basis of the codes."""
    dim = rows.shape[-1]
    n = 1 << (dim.bit_length() - 1)
    out = rows.copy()
    out[..., :n] = _hadamard(out[..., :n] * _scaled_signs(SIGNS[:n]))
    if n != dim:
        out[..., -n:] = _hadamard(out[..., -n:] * _scaled_signs(SIGNS[256 : 256 + n]))
    return out


def turned_back(rows: Double) -> Double:
    """The inverse of `turned`, by its matrix."""
    matrix = turned(np.eye(rows.shape[-1], dtype=np.float32)).astype(np.float64)
    back: Double = rows @ matrix.T
    return back


def codes_and_scales(rows: Float, kv_dtype: str) -> tuple[Float, Float]:
    """Integers of [-127, 127] as floats `[..., dim]`, and the scale `[..., 1]` of each row."""
    x = turned(rows)
    if kv_dtype == "int8":
        largest = np.abs(x).max(-1, keepdims=True)
        codes = np.rint(x * (np.float32(127) / largest))
        return codes, largest * (np.float32(1) / np.float32(127))
    deviation = np.sqrt(_sum(x * x) / np.float32(x.shape[-1]))
    scaled = x * (np.float32(1) / deviation)
    codes = LEVELS[(np.abs(scaled)[..., None] > THRESHOLDS).sum(-1)] * np.where(
        scaled < 0, np.float32(-1), np.float32(1)
    )
    return codes, _sum(x * codes) / (codes * codes).sum(-1, keepdims=True)


def kept(rows: Float, kv_dtype: str) -> Double:
    """What a pool gives back of rows `[..., dim]`."""
    codes, scales = codes_and_scales(rows, kv_dtype)
    return turned_back(codes.astype(np.float64) * scales)


def cell_bytes(dim: int, kv_dtype: str) -> int:
    """Of one row: codes and a float32 scale."""
    return (dim if kv_dtype == "int8" else -(-dim // 32) * 16) + 4


def packed(rows: Float, kv_dtype: str) -> tuple[npt.NDArray[np.uint8], Float]:
    """The bytes of a pool's two planes."""
    codes, scales = codes_and_scales(rows, kv_dtype)
    if kv_dtype == "int8":
        return codes.astype(np.int8).view(np.uint8), scales
    index = np.searchsorted(LEVELS, np.abs(codes)) + 8 * (codes < 0)
    pad = [(0, 0)] * (index.ndim - 1) + [(0, -index.shape[-1] % 32)]
    blocks = np.pad(index, pad).reshape(*index.shape[:-1], -1, 2, 16)
    nibbles = (blocks[..., 0, :] | blocks[..., 1, :] << 4).astype(np.uint8)
    return nibbles.reshape(*index.shape[:-1], -1), scales


def _scaled_signs(signs: Float) -> Float:
    out: Float = signs * (np.float32(1) / np.sqrt(np.float32(len(signs))))
    return out


def _hadamard(x: Float) -> Float:
    n = x.shape[-1]
    for _ in range(n.bit_length() - 1):
        a, b = x[..., : n // 2], x[..., n // 2 :]
        x = np.stack((a + b, a - b), -1).reshape(x.shape)
    return x


def _sum(x: Float) -> Float:
    pad = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 16)]
    lanes = np.pad(x, pad).reshape(*x.shape[:-1], -1, 16)
    total = lanes[..., 0, :]
    for i in range(1, lanes.shape[-2]):
        total = total + lanes[..., i, :]
    while total.shape[-1] > 1:
        half = total.shape[-1] // 2
        total = total[..., :half] + total[..., half:]
    return total
