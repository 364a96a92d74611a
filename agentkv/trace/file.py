"""Trace files: frames of records, appended. Readers leave out a last frame that a crash cut off.

b"agentkv trace\\n"  { uint32 bytes of the payload, uint32 crc32 of it, payload: a msgpack array of records }
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from .._types.errors import InvalidInput, TraceError
from .checks import fault_of
from .records import VERSION, AnyRecord, Began

MAGIC = b"agentkv trace\n"
_FRAME = struct.Struct("<II")
_AS_IT_IS = getattr(os, "O_BINARY", 0)  # Windows would make two bytes of each \n
MOST_BYTES = 1 << 28  # of one frame; no writer of ours makes larger ones


class TraceWriter:
    """Appends frames to a new file.

    Raises:
        InvalidInput: the path exists and is no trace.
        TraceError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not is_trace(path):
            raise InvalidInput(f"{path} is there already, and is no trace; give a path where nothing is, or a trace")
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | _AS_IT_IS, 0o644)
        except OSError as error:
            raise TraceError(f"{path} cannot be written: {error.strerror}; give another path") from error
        self._encoder = msgspec.msgpack.Encoder()
        self._path = path
        self._has_frames = False
        self._write(MAGIC)

    def write(self, records: Sequence[AnyRecord]) -> None:
        """Appends one frame. Raises TraceError; the file then ends with the frame before it."""
        payload = self._encoder.encode(records)
        self._write(_FRAME.pack(len(payload), zlib.crc32(payload)) + payload)
        self._has_frames = True

    def close(self) -> None:
        """Ends the file; removes it if nothing was recorded, as no tool reads such a one. Idempotent."""
        if self._file < 0:
            return
        is_file = stat.S_ISREG(os.fstat(self._file).st_mode)
        os.close(self._file)
        self._file = -1
        if is_file and not self._has_frames:
            with suppress(OSError):
                self._path.unlink()

    def _write(self, data: bytes) -> None:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            raise TraceError(f"{self._path} cannot be written: {error.strerror}") from error


def is_trace(path: Path) -> bool:
    """Returns whether the file begins as a trace does; an empty file counts as one."""
    try:
        with path.open("rb") as file:
            begin = file.read(len(MAGIC))
    except OSError:
        return False
    return MAGIC.startswith(begin)


def read_frames(path: Path, progress: Callable[[float], None] | None = None) -> Iterator[list[AnyRecord]]:
    """Yields the records of each whole frame; the first record is Began. Ends at a frame that is not whole.

    `progress` is called with the fraction of the file that was read, 0 to 1.

    Raises:
        TraceError: the file cannot be read, is no trace, one of another version, or damaged.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            for records in _frames(path, file):
                yield records
                if progress is not None:
                    progress(file.tell() / size)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from error


def _frames(path: Path, file: BinaryIO) -> Iterator[list[AnyRecord]]:
    if file.read(len(MAGIC)) != MAGIC:
        raise TraceError(f"{path} is no trace; `agentkv.trace.record` writes them")
    decoder = msgspec.msgpack.Decoder(list[AnyRecord])
    first = True
    while len(head := file.read(_FRAME.size)) == _FRAME.size:
        length, checksum = _FRAME.unpack(head)
        at = file.tell()
        if length > MOST_BYTES:
            raise TraceError(f"{path} is damaged at byte {at}: a frame of {length} bytes")
        payload = file.read(length)
        if len(payload) < length:
            return
        if zlib.crc32(payload) != checksum:
            if file.read(1):
                raise TraceError(f"{path} is damaged at byte {at}: the checksum is another")
            return  # the end of a file after a crash of the machine
        try:
            records = decoder.decode(payload)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
            raise TraceError(f"{path} is damaged at byte {at}, or of a newer agentkv: {error}") from error
        if first:
            _check_beginning(path, records)
        first = False
        if fault := next(filter(None, map(fault_of, records)), ""):
            raise TraceError(f"{path} is damaged at byte {at}: {fault}")
        yield records
    if first:
        raise TraceError(f"{path} has no record yet")


def _check_beginning(path: Path, records: Sequence[AnyRecord]) -> None:
    if not records or not isinstance(records[0], Began):
        raise TraceError(f"{path} is damaged: it does not begin with what was recorded")
    if records[0].version != VERSION:
        raise TraceError(
            f"{path} is a trace of version {records[0].version}, and this agentkv reads version {VERSION}; "
            f"agentkv {records[0].agentkv} wrote it"
        )
