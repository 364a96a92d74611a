"""The delegate's graph as bytes. `cpp/mlx/graph_blob.h` reads it; all numbers are little-endian.

    header       "AKVG", u32 version, u32 size and u32 CRC-32 of what follows
    inputs       u32 count { type }
    constants    u32 count { string key, type }
    instructions u32 count { u32 opcode, u32 n { i32 arg }, u32 n { i64 }, u32 n { f64 } }
    outputs      u32 count { u32 value, type }

    string       u32 length, UTF-8 bytes
    type         u32 dtype, u32 rank { i64 size, -1 for any }

Inputs are the first values, constants the next, and every instruction makes one more. An arg is an earlier value, or
-1 for one left out. The weights themselves are ExecuTorch's named data, under the constants' keys.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from enum import IntEnum

import torch

__all__ = [
    "DTYPES",
    "GRAPH_MAGIC",
    "GRAPH_VERSION",
    "INT64_MAX",
    "Constant",
    "Graph",
    "Instruction",
    "Opcode",
    "TensorType",
]

GRAPH_MAGIC = b"AKVG"
GRAPH_VERSION = 1
INT64_MAX = (1 << 63) - 1


class Opcode(IntEnum):
    """Operation of an instruction. Comments list its args; ints; floats."""

    LINEAR = 1  # x, w [O, I], bias?
    AFFINE_LINEAR = 2  # x, packed, scales, biases, bias?; group, bits
    EMBEDDING = 3  # table, indices
    AFFINE_EMBEDDING = 4  # packed, scales, biases, indices; group, bits
    RMS_NORM = 5  # x, weight?; ; eps
    LAYER_NORM = 6  # x, weight?, bias?; ; eps
    ROPE = 7  # x [1, H, T, D], position [T], inv_freq [F]; interleaved; scaling
    # q, k, v, position, sink scores?, slopes?; layer, window, dtype, chunk?, is k and v another's?; scale, cap?
    UPDATE_AND_ATTEND = 8
    MATMUL = 9  # a, b
    SOFTMAX = 10  # x; axis
    CAST = 11  # x; dtype
    SCALAR = 12  # ; dtype; value
    RESHAPE = 13  # x; sizes, at most one of them -1
    TRANSPOSE = 14  # x; axes
    SLICE = 15  # x; axis, start, end, step
    CONCAT = 16  # x...; axis
    BROADCAST = 17  # x; sizes, -1 for those that stay
    TAKE = 18  # x, indices; axis
    NEG = 20
    ABS = 21
    EXP = 22
    LOG = 23
    SQRT = 24
    RSQRT = 25
    SIN = 26
    COS = 27
    TANH = 28
    SIGMOID = 29
    RELU = 30
    SILU = 31
    GELU = 32
    GELU_TANH = 33
    RECIPROCAL = 34
    ERF = 35
    LOGICAL_NOT = 36
    FLOOR = 37
    ADD = 40
    SUB = 41
    MUL = 42
    DIV = 43
    POW = 44
    MAXIMUM = 45
    MINIMUM = 46
    EQ = 47
    NE = 48
    LT = 49
    LE = 50
    GT = 51
    GE = 52
    WHERE = 60  # condition, a, b
    MEAN = 70  # x; keepdim, axes...
    SUM = 71
    MAX = 72
    MIN = 73
    EXPERT_LINEAR = 80  # x [T, I] or [T, K, I], chosen [T, K], w [E, O, I], bias [E, O]?
    AFFINE_EXPERT_LINEAR = 81  # x, chosen, packed, scales, biases, bias?; group, bits
    TOP_K = 82  # x; axis, k, largest: indices
    TAKE_ALONG = 83  # x, indices; axis
    PUT_ALONG = 84  # x, indices, values; axis
    SHORT_CONV = 90  # x [1, T, C], weight [C, 1, W], position [T], bias [C]?; layer
    # q and k [1, T, G, K], v [1, T, H, V], decay [1, T, H] or [1, T, H, K], position [T], beta [1, T, H]?, skip [H]?;
    # layer, by the delta rule?
    LINEAR_ATTENTION = 91
    # x and decay [1, T, C], rates [N, C], b and c [1, T, N], position [T]; layer
    SELECTIVE_SCAN = 92


DTYPES = {
    torch.float32: 0,
    torch.int64: 1,
    torch.float16: 2,
    torch.bfloat16: 3,
    torch.int32: 4,
    torch.uint32: 5,
    torch.uint8: 6,
    torch.bool: 7,
}
"""Code of each element type."""


@dataclass(frozen=True)
class TensorType:
    """Element type and sizes of a tensor, -1 for a size that depends on the call."""

    dtype: torch.dtype
    sizes: tuple[int, ...]

    def pack(self) -> bytes:
        """Packs element type, rank and sizes."""
        return struct.pack(f"<II{len(self.sizes)}q", DTYPES[self.dtype], len(self.sizes), *self.sizes)


@dataclass(frozen=True)
class Constant:
    """A weight: its key in the program's named data, and its type."""

    key: str
    type: TensorType

    def pack(self) -> bytes:
        """Packs key and type."""
        key = self.key.encode()
        return struct.pack("<I", len(key)) + key + self.type.pack()


@dataclass(frozen=True)
class Instruction:
    """One operation; `args` are value ids."""

    opcode: Opcode
    args: tuple[int, ...] = ()
    ints: tuple[int, ...] = ()
    floats: tuple[float, ...] = ()

    def pack(self) -> bytes:
        """Packs opcode, args, ints and floats."""
        packed = struct.pack("<I", self.opcode)
        for values, code in ((self.args, "i"), (self.ints, "q"), (self.floats, "d")):
            packed += struct.pack(f"<I{len(values)}{code}", len(values), *values)
        return packed


@dataclass
class Graph:
    """Inputs, constants, instructions and outputs of one call of a delegate."""

    inputs: list[TensorType] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    outputs: list[tuple[int, TensorType]] = field(default_factory=list)

    def pack(self) -> bytes:
        """Packs the graph with its header."""
        payload = b"".join(
            struct.pack("<I", len(packed)) + b"".join(packed)
            for packed in (
                [entry.pack() for entry in self.inputs],
                [entry.pack() for entry in self.constants],
                [entry.pack() for entry in self.instructions],
                [struct.pack("<I", value) + kind.pack() for value, kind in self.outputs],
            )
        )
        return struct.pack("<4sIII", GRAPH_MAGIC, GRAPH_VERSION, len(payload), zlib.crc32(payload)) + payload
