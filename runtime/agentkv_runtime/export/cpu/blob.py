"""The delegate's blob: instructions over strided views. `cpp/executorch/cpu/delegate_blob.h` reads it."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from enum import IntEnum

import torch

__all__ = ["BLOB_MAGIC", "BLOB_VERSION", "Copy", "Extent", "Instruction", "Place", "Program", "View"]

BLOB_MAGIC = b"AKVD"
BLOB_VERSION = 1


class Place(IntEnum):
    """Where a buffer lives."""

    INPUT = 0
    OUTPUT = 1
    TEMP = 2


class Opcode(IntEnum):
    """What an instruction does."""

    COPY = 1
    RMS_NORM = 2
    ROPE_TABLE = 3
    ROPE = 4
    UPDATE_AND_ATTEND = 5


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
class Copy:
    """dst = src."""

    src: View
    dst: View

    def pack(self) -> bytes:
        """The instruction's bytes."""
        return struct.pack("<I", Opcode.COPY) + self.src.pack() + self.dst.pack()


@dataclass(frozen=True)
class RmsNorm:
    """dst = src / sqrt(mean(src^2) + eps) * weight, per head and row."""

    src: View
    dst: View
    constant: int
    eps: float

    def pack(self) -> bytes:
        """The instruction's bytes."""
        tail = struct.pack("<Id", self.constant, self.eps)
        return struct.pack("<I", Opcode.RMS_NORM) + self.src.pack() + self.dst.pack() + tail


@dataclass(frozen=True)
class RopeTable:
    """dst = cos and sin of position * inv_freq, times scaling."""

    position: int
    dst: View
    constant: int
    scaling: float

    def pack(self) -> bytes:
        """The instruction's bytes."""
        tail = struct.pack("<Id", self.constant, self.scaling)
        return struct.pack("<II", Opcode.ROPE_TABLE, self.position) + self.dst.pack() + tail


@dataclass(frozen=True)
class Rope:
    """dst = src with its first 2 F dimensions turned by the table."""

    src: View
    dst: View
    table: View
    interleaved: bool

    def pack(self) -> bytes:
        """The instruction's bytes."""
        tail = struct.pack("<I", int(self.interleaved))
        return struct.pack("<I", Opcode.ROPE) + self.src.pack() + self.dst.pack() + self.table.pack() + tail


@dataclass(frozen=True)
class UpdateAndAttend:
    """Writes k and v to the cache at `position`, then dst = attention of q."""

    layer_id: int
    position: int
    scale: float
    window: int
    q: View
    k: View
    v: View
    dst: View

    def pack(self) -> bytes:
        """The instruction's bytes."""
        head = struct.pack("<IIIdi", Opcode.UPDATE_AND_ATTEND, self.layer_id, self.position, self.scale, self.window)
        return head + self.q.pack() + self.k.pack() + self.v.pack() + self.dst.pack()


Instruction = Copy | RmsNorm | RopeTable | Rope | UpdateAndAttend


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
