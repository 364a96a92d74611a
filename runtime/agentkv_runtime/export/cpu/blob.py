"""The delegate's blob: instructions over strided views. `cpp/executorch/cpu/delegate_blob.h` reads it."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import ClassVar

import torch

__all__ = ["BLOB_MAGIC", "BLOB_VERSION", "Copy", "Extent", "Instruction", "Place", "Program", "View"]

BLOB_MAGIC = b"AKVD"
BLOB_VERSION = 1


class Place(IntEnum):
    """Where a buffer lives."""

    INPUT = 0
    OUTPUT = 1
    TEMP = 2


class DType(IntEnum):
    """What a delegate input or output holds."""

    FLOAT32 = 0
    INT64 = 1


@dataclass(frozen=True)
class Extent:
    """A number that grows with the rows of a call: `constant + per_token * T`."""

    constant: int
    per_token: int

    def pack(self) -> bytes:
        """Two int64."""
        return struct.pack("<qq", self.constant, self.per_token)


@dataclass
class Buffer:
    """A float buffer; where it lives is settled once the region is compiled."""

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
        """Place, index, heads, dim and three extents."""
        head = struct.pack("<IIii", self.buffer.place, self.buffer.index, self.heads, self.dim)
        return head + self.offset.pack() + self.head_stride.pack() + self.token_stride.pack()


@dataclass(frozen=True)
class Instruction:
    """One operation: its opcode, then its fields in their order."""

    opcode: ClassVar[int]

    def pack(self) -> bytes:
        """Views as they pack, floats as double, the rest as uint32."""
        values = [getattr(self, field.name) for field in fields(self)]
        return struct.pack("<I", self.opcode) + b"".join(
            value.pack() if isinstance(value, View) else struct.pack("<d" if isinstance(value, float) else "<I", value)
            for value in values
        )


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
    """dst = src with its first 2 F dimensions turned by the table."""

    opcode = 4
    src: View
    dst: View
    table: View
    interleaved: bool


@dataclass(frozen=True)
class UpdateAndAttend(Instruction):
    """Writes k and v to the cache at `position`, then dst = attention of q."""

    opcode = 5
    layer_id: int
    position: int
    scale: float
    window: int
    q: View
    k: View
    v: View
    dst: View


@dataclass
class Program:
    """One delegated region."""

    inputs: list[tuple[DType, tuple[Extent, ...]]] = field(default_factory=list)
    outputs: list[tuple[DType, tuple[Extent, ...]]] = field(default_factory=list)
    temps: list[int] = field(default_factory=list)  # floats per token
    constants: list[torch.Tensor] = field(default_factory=list)  # float32, flat
    instructions: list[Instruction] = field(default_factory=list)

    def pack(self) -> bytes:
        """Header (magic, version, size and CRC-32 of the payload) and payload."""
        parts: list[bytes] = []
        for values in (self.inputs, self.outputs):
            parts.append(struct.pack("<I", len(values)))
            for dtype, shape in values:
                parts.append(struct.pack("<II", dtype, len(shape)))
                parts += [size.pack() for size in shape]
        parts.append(struct.pack(f"<I{len(self.temps)}q", len(self.temps), *self.temps))
        parts.append(struct.pack("<I", len(self.constants)))
        for constant in self.constants:
            data = constant.detach().to(torch.float32).contiguous().numpy().tobytes()
            parts += [struct.pack("<I", constant.numel()), data]
        parts.append(struct.pack("<I", len(self.instructions)))
        parts += [instruction.pack() for instruction in self.instructions]
        payload = b"".join(parts)
        return BLOB_MAGIC + struct.pack("<III", BLOB_VERSION, len(payload), zlib.crc32(payload)) + payload
