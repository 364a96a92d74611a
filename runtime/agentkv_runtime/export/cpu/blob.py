"""The delegate's blob: instructions over strided views. `cpp/executorch/cpu/delegate_blob.h` reads it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from agentkv_runtime.export.cpu.blob_weights import Blocks, Weight

__all__ = ["BLOB_MAGIC", "BLOB_VERSION", "Copy", "Extent", "Instruction", "Numbers", "Place", "Program", "View"]

BLOB_MAGIC = b"AKVD"
BLOB_VERSION = 1


Numbers: TypeAlias = Callable[[], npt.NDArray[np.float32]]
"""Loads numbers of a constant, when the blob is packed."""


class Place(IntEnum):
    """Kind of memory in which a buffer lies."""

    INPUT = 0
    OUTPUT = 1
    TEMP = 2


class DType(IntEnum):
    """Element type of a delegate's input or output."""

    FLOAT32 = 0
    INT64 = 1


@dataclass(frozen=True)
class Extent:
    """A number that grows with the rows of a call: `constant + per_token * T`."""

    constant: int
    per_token: int

    def pack(self) -> bytes:
        """Packs the two numbers as int64."""
        return struct.pack("<qq", self.constant, self.per_token)


@dataclass
class Buffer:
    """A buffer of floats, whose place is final once the region is compiled."""

    place: Place
    index: int
    floats_per_token: int = 0


@dataclass(frozen=True)
class View:
    """Rows of `heads` blocks of `dim` floats in a buffer, with strides in floats; `dim` is contiguous."""

    buffer: Buffer
    heads: int
    dim: int
    offset: Extent
    head_stride: Extent
    token_stride: Extent

    def pack(self) -> bytes:
        """Packs place, index, heads, dim and three extents."""
        head = struct.pack("<IIii", self.buffer.place, self.buffer.index, self.heads, self.dim)
        return head + self.offset.pack() + self.head_stride.pack() + self.token_stride.pack()


def _packed(value: Any) -> bytes:
    if isinstance(value, View | Weight | Blocks):
        return value.pack()
    return struct.pack("<d" if isinstance(value, float) else "<I", value)


@dataclass(frozen=True)
class Instruction:
    """One operation: its opcode, then its fields in their order."""

    opcode: ClassVar[int]

    def pack(self) -> bytes:
        """Packs the opcode and the fields: views and weights by their `pack`, floats as double, others as uint32."""
        values = [getattr(self, field.name) for field in fields(self)]
        return struct.pack("<I", self.opcode) + b"".join(_packed(value) for value in values)

    def buffers(self) -> list[Buffer]:
        """Buffers that the instruction reads and writes."""
        values = [getattr(self, field.name) for field in fields(self)]
        return [value.buffer for value in values if isinstance(value, View)]


@dataclass(frozen=True)
class Copy(Instruction):
    """dst = src."""

    opcode = 1
    src: View
    dst: View


@dataclass(frozen=True)
class RmsNorm(Instruction):
    """dst = src / sqrt(mean(src^2) + eps) * weight, per head and row."""

    opcode = 2
    src: View
    dst: View
    constant: int
    eps: float


@dataclass(frozen=True)
class RopeTable(Instruction):
    """dst = cos and sin of position * inv_freq, times scaling."""

    opcode = 3
    position: int
    dst: View
    constant: int
    scaling: float


@dataclass(frozen=True)
class Rope(Instruction):
    """dst = src with its first 2 F dimensions rotated by the table."""

    opcode = 4
    src: View
    dst: View
    table: View
    interleaved: bool


@dataclass(frozen=True)
class UpdateAndAttend(Instruction):
    """If `writes`, stores k and v in the cache at `position`; then dst = attention of q. See `hf.scoring`."""

    opcode = 10
    layer_id: int
    position: int
    scale: float
    window: int
    chunk: int
    cap: float
    sink_scores: int
    """Index of a constant plus 1, or 0 for none; likewise `slopes`."""
    slopes: int
    writes: bool
    q: View
    k: View
    v: View
    dst: View


@dataclass(frozen=True)
class Linear(Instruction):
    """dst = src times the weight's transpose, plus a bias."""

    opcode = 6
    src: View
    dst: View
    weight: Weight | Blocks
    bias: int
    """Index of a constant plus 1, or 0 for none."""


@dataclass(frozen=True)
class BlockLinear(Linear):
    """`Linear` over a weight in blocks."""

    opcode = 17


@dataclass(frozen=True)
class BlockLookup(Instruction):
    """dst = the weight's rows with these ids, times a factor."""

    opcode = 18
    ids: int
    dst: View
    weight: Blocks
    rows: int
    factor: float


@dataclass(frozen=True)
class Add(Instruction):
    """dst = a + b."""

    opcode = 7
    a: View
    b: View
    dst: View


@dataclass(frozen=True)
class Activate(Instruction):
    """dst = gate(src), see `row_ops.Gate`."""

    opcode = 8
    src: View
    dst: View
    gate: int


@dataclass(frozen=True)
class Gated(Instruction):
    """dst = gate(src) * up."""

    opcode = 9
    src: View
    up: View
    dst: View
    gate: int


@dataclass(frozen=True)
class ExpertLinear(Instruction):
    """dst = W[expert] src + bias[expert], for each expert that a row is routed to."""

    opcode = 11
    src: View
    dst: View
    experts: int
    chosen: int
    weight: Weight | Blocks
    bias: int


@dataclass(frozen=True)
class BlockExpertLinear(ExpertLinear):
    """`ExpertLinear` over weights in blocks."""

    opcode = 19


@dataclass(frozen=True)
class WeightedSum(Instruction):
    """dst = the sum over heads of weights times src."""

    opcode = 12
    src: View
    weights: View
    dst: View


@dataclass(frozen=True)
class Convolve(Instruction):
    """dst = each channel's weights times its last `width` inputs, which the cache stores as the layer's keys."""

    opcode = 13
    layer_id: int
    position: int
    width: int
    weight: int
    bias: int
    src: View
    dst: View


@dataclass(frozen=True)
class LinearAttend(Instruction):
    """dst = linear attention of q over the states; without beta its field may be any view."""

    opcode = 15
    layer_id: int
    position: int
    corrects: bool
    has_beta: bool
    skip: int
    q: View
    k: View
    v: View
    decay: View
    beta: View
    dst: View


@dataclass(frozen=True)
class Scan(Instruction):
    """dst = selective scan of the inputs; rates are a constant `[N, C]`."""

    opcode = 16
    layer_id: int
    position: int
    rates: int
    x: View
    decay: View
    b: View
    c: View
    dst: View


@dataclass(frozen=True)
class Multiply(Instruction):
    """dst = a * b."""

    opcode = 14
    a: View
    b: View
    dst: View


@dataclass
class Program:
    """One delegated region."""

    inputs: list[tuple[DType, tuple[Extent, ...]]] = field(default_factory=list)
    outputs: list[tuple[DType, tuple[Extent, ...]]] = field(default_factory=list)
    temps: list[int] = field(default_factory=list)  # floats per token
    constants: list[list[Numbers]] = field(default_factory=list)
    """Constants, each the concatenated numbers of some tensors."""
    instructions: list[Instruction] = field(default_factory=list)

    @property
    def weights(self) -> list[Weight | Blocks]:
        """Weights of the region's linear layers and lookups."""
        weighted = Linear | ExpertLinear | BlockLookup  # and what derives from them
        return [each.weight for each in self.instructions if isinstance(each, weighted)]

    def pack(self) -> bytes:
        """Packs header (magic, version, size and CRC-32 of the payload) and payload."""
        parts: list[bytes] = []
        for values in (self.inputs, self.outputs):
            parts.append(struct.pack("<I", len(values)))
            for dtype, shape in values:
                parts.append(struct.pack("<II", dtype, len(shape)))
                parts += [size.pack() for size in shape]
        parts.append(struct.pack(f"<I{len(self.temps)}q", len(self.temps), *self.temps))
        parts.append(struct.pack("<I", len(self.constants)))
        for constant in self.constants:
            numbers = np.concatenate([load().ravel() for load in constant], dtype=np.float32)
            parts += [struct.pack("<I", numbers.size), numbers.tobytes()]
        parts.append(struct.pack("<I", len(self.instructions)))
        parts += [instruction.pack() for instruction in self.instructions]
        payload = b"".join(parts)
        return BLOB_MAGIC + struct.pack("<III", BLOB_VERSION, len(payload), zlib.crc32(payload)) + payload
