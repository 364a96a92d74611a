"""The container of a program: an ExecuTorch file written without ExecuTorch.

The schema is `program.fbs` of ExecuTorch; fields are in its order. A program has one method
`forward` that calls kernels and delegates in turn, and methods that return constants.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from flatbuffers import Builder

__all__ = ["HEADER_ALIGNMENT", "Delegate", "Kernel", "Planned", "Program", "Segment", "Tensor", "pack_program"]

HEADER_ALIGNMENT = 4096
"""Alignment of the first segment, so that weights at page boundaries can be mapped."""

_IDENTIFIER = b"ET12"
_EXTENDED = b"eh00"
_EXTENDED_BYTES = 32
_DYNAMIC_BOUND = 1
_IN_SEGMENT = 1


class ScalarType(IntEnum):
    """Element type of a tensor."""

    INT64 = 4
    FLOAT32 = 6


class _Union(IntEnum):
    """Types of values and of instructions."""

    INT = 2
    TENSOR = 5
    INT_LIST = 7
    KERNEL_CALL = 1
    DELEGATE_CALL = 2


@dataclass(frozen=True)
class Planned:
    """Offset of a tensor in the program's planned memory, in bytes."""

    offset: int


@dataclass(frozen=True)
class Tensor:
    """A tensor with its largest sizes. Inputs and outputs belong to the caller and have no planned memory."""

    dtype: ScalarType
    sizes: tuple[int, ...]
    planned: Planned | None = None


Value: TypeAlias = Tensor | int | tuple[int, ...]
"""A tensor, a number, or a list of indices of values, of which a kernel takes numbers."""


@dataclass(frozen=True)
class Kernel:
    """A call of an operator, such as `aten::index_select.out`, with the indices of its values."""

    name: str
    overload: str
    args: tuple[int, ...]


@dataclass(frozen=True)
class Delegate:
    """A call of a backend, whose blob is a segment."""

    backend: str
    segment: int
    args: tuple[int, ...]


@dataclass(frozen=True)
class Segment:
    """Offset and size of bytes after the header, relative to the first segment."""

    offset: int
    size: int


@dataclass
class Program:
    """Contents of the header."""

    values: Sequence[Value]
    inputs: Sequence[int]
    outputs: Sequence[int]
    calls: Sequence[Kernel | Delegate]
    memory: int
    """Bytes of planned memory."""
    constants: Mapping[str, int | Sequence[int]]
    segments: Sequence[Segment]
    named: Mapping[str, int] = field(default_factory=dict)
    """Indices of segments by name."""


class _Tables:
    """Builder of a flatbuffer's tables, which returns their offsets."""

    def __init__(self) -> None:
        self.builder = Builder(1 << 16)

    def numbers(self, values: Sequence[int], dtype: type[np.generic]) -> int:
        offset: int = self.builder.CreateNumpyVector(np.array(values, dtype=dtype))
        return offset

    def tables(self, offsets: Sequence[int]) -> int:
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return int(self.builder.EndVector())

    def text(self, text: str) -> int:
        return int(self.builder.CreateString(text))

    def table(self, *fields: tuple[str, int] | int | None) -> int:
        """Adds a table of fields in order: an offset, a type name with a scalar, or None for a missing field."""
        self.builder.StartObject(len(fields))
        for slot, value in enumerate(fields):
            if isinstance(value, int):
                self.builder.PrependUOffsetTRelativeSlot(slot, value, 0)
            elif value is not None:
                getattr(self.builder, f"Prepend{value[0]}Slot")(slot, value[1], 0)
        return int(self.builder.EndObject())


def pack_program(program: Program, base: int) -> bytes:
    """Packs the header, whose size does not depend on its offsets; the first segment begins at `base` bytes."""
    tables = _Tables()
    plans = [_forward(tables, program)]
    plans += [_constant(tables, name, value) for name, value in program.constants.items()]
    segments = [tables.table(("Uint64", each.offset), ("Uint64", each.size)) for each in program.segments]
    named = [tables.table(tables.text(name), ("Uint32", index)) for name, index in program.named.items()]
    root = tables.table(
        None,  # version 0
        tables.tables(plans),
        tables.tables([]),
        tables.tables([]),
        tables.tables(segments),
        tables.table(None, tables.numbers((0,), np.uint64)),  # the place of the one that stands for no constant
        None,
        tables.tables(named),
    )
    tables.builder.Finish(root, file_identifier=_IDENTIFIER)
    return _extended(bytes(tables.builder.Output()), program, base)


def _none(tables: _Tables, dtype: type[np.generic]) -> int:
    return tables.numbers((), dtype)


def _extended(flat: bytes, program: Program, base: int) -> bytes:
    """The flatbuffer with ExecuTorch's own header after its root and identifier."""
    (root,) = struct.unpack_from("<I", flat)
    size = len(flat) + _EXTENDED_BYTES
    nbytes = max((each.offset + each.size for each in program.segments), default=0)
    header = _EXTENDED + struct.pack("<IQQQ", _EXTENDED_BYTES, size, base, nbytes)
    return struct.pack("<I", root + _EXTENDED_BYTES) + flat[4:8] + header + flat[8:]


def _forward(tables: _Tables, program: Program) -> int:
    operators = list(dict.fromkeys((each.name, each.overload) for each in program.calls if isinstance(each, Kernel)))
    delegates = [each for each in program.calls if isinstance(each, Delegate)]
    calls = [_call(tables, each, operators, delegates) for each in program.calls]
    chain = tables.table(_none(tables, np.int32), _none(tables, np.int32), tables.tables(calls))
    return tables.table(
        tables.text("forward"),
        _no_container(tables),
        tables.tables([_value(tables, each) for each in program.values]),
        tables.numbers(program.inputs, np.int32),
        tables.numbers(program.outputs, np.int32),
        tables.tables([chain]),
        tables.tables([tables.table(tables.text(name), tables.text(overload)) for name, overload in operators]),
        tables.tables([_delegate(tables, each) for each in delegates]),
        tables.numbers((0, program.memory), np.int64),
    )


def _constant(tables: _Tables, name: str, value: int | Sequence[int]) -> int:
    """Adds a method that returns one or several numbers; returns its offset."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return tables.table(
        tables.text(name),
        _no_container(tables),
        tables.tables([_value(tables, each) for each in values]),
        _none(tables, np.int32),
        tables.numbers(range(len(values)), np.int32),
        tables.tables([tables.table(_none(tables, np.int32), _none(tables, np.int32), tables.tables([]))]),
        tables.tables([]),
        tables.tables([]),
        tables.numbers((0,), np.int64),
    )


def _no_container(tables: _Tables) -> int:
    return tables.table(tables.text(""), tables.text(""))


def _value(tables: _Tables, value: Value) -> int:
    if isinstance(value, Tensor):
        return tables.table(("Uint8", _Union.TENSOR), _tensor(tables, value))
    if isinstance(value, int):
        return tables.table(("Uint8", _Union.INT), tables.table(("Int64", value)))
    return tables.table(("Uint8", _Union.INT_LIST), tables.table(tables.numbers(value, np.int64)))


def _tensor(tables: _Tables, tensor: Tensor) -> int:
    place = tensor.planned
    return tables.table(
        ("Int8", tensor.dtype),
        None,
        tables.numbers(tensor.sizes, np.int32),
        tables.numbers(range(len(tensor.sizes)), np.uint8),
        None,
        None,
        None
        if place is None
        else tables.table(("Uint32", 1), ("Uint32", place.offset & 0xFFFFFFFF), ("Uint32", place.offset >> 32)),
        None,
        ("Int8", _DYNAMIC_BOUND),
    )


def _call(tables: _Tables, call: Kernel | Delegate, operators: list[tuple[str, str]], delegates: list[Delegate]) -> int:
    args = tables.numbers(call.args, np.int32)
    if isinstance(call, Kernel):
        made = tables.table(("Int32", operators.index((call.name, call.overload))), args)
        return tables.table(("Uint8", _Union.KERNEL_CALL), made)
    made = tables.table(("Int32", delegates.index(call)), args)
    return tables.table(("Uint8", _Union.DELEGATE_CALL), made)


def _delegate(tables: _Tables, delegate: Delegate) -> int:
    place = tables.table(("Int8", _IN_SEGMENT), ("Uint32", delegate.segment))
    return tables.table(tables.text(delegate.backend), place, tables.tables([]))
