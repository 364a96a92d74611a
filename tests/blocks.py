"""Rows of random blocks, of every type of GGUF that programs run."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import torch
from agentkv_runtime._core import block_types
from agentkv_runtime.export.blocks.rows import Numbers, quantize_rows
from gguf import GGMLQuantizationType as Q

TYPES = {name: (kind, inputs, size) for kind, name, inputs, size in block_types()}
SCALES = {"q2_k": (80, 84), "q3_k": (108, 110), "q6_k": (208, 210)}  # where 16-bit floats lie in a block
MINIMA = ("q4_1", "q5_1", "q4_k", "q5_k")


def random_blocks(name: str, outputs: int, blocks: int, seed: int = 0, scale: float = 0.01) -> Any:
    """Rows uint8 `[outputs, bytes]` of any codes, with scales of about this size and of both signs."""
    _, _, size = TYPES[name]
    generator = np.random.default_rng(seed)
    rows = generator.integers(0, 256, (outputs, blocks, size), dtype=np.uint8)
    if name == "mxfp4":
        rows[..., 0] = generator.integers(100, 140, rows.shape[:2])
    elif name == "f32":
        rows[:] = generator.standard_normal(rows.shape[:2], dtype=np.float32)[..., None].view(np.uint8)
    else:
        begin, end = SCALES.get(name, (0, 4 if name in MINIMA else 2))
        halves = generator.normal(0, scale, (*rows.shape[:2], (end - begin) // 2)).astype(np.float16)
        rows[..., begin:end] = halves.view(np.uint8)
    return rows.reshape(outputs, -1)


def dequantized(name: str, rows: Any) -> Any:
    """What the package gguf reads in rows of blocks: float32 `[outputs, inputs]`."""
    kind = Q(TYPES[name][0])
    floats = {Q.F32: np.float32, Q.F16: np.float16}
    return gguf.dequantize(rows.view(floats[kind]) if kind in floats else rows, kind).astype(np.float32)


def as_numbers(weight: torch.Tensor) -> Numbers:
    """A weight as the quantiser takes it."""
    detached = weight.detach().contiguous()
    numbers: Numbers = (detached.view(torch.uint16) if detached.dtype == torch.bfloat16 else detached).numpy()
    return numbers


def quantized(weight: torch.Tensor, kind: str, importance: torch.Tensor | None = None) -> torch.Tensor:
    """The bytes of a weight's rows as blocks."""
    counts = None if importance is None else importance.numpy()
    return torch.from_numpy(quantize_rows(as_numbers(weight), kind, counts).rows)
