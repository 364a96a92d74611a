"""Safetensors files of large tensors: written in slices, renamed into place when complete; read by mapping, checked.

The header's metadata has the digest of every tensor (`digest <name>`) and one of the header itself (`digest`): XXH3 of
128 bits, which finds damage and is no signature. https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import weakref
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from agentkv_runtime.errors import TensorFileError
from agentkv_runtime.folder.fresh_file import FreshFile
from agentkv_runtime.folder.printable import printable
from agentkv_runtime.folder.small_files import open_regular

__all__ = ["MOST_HEADER_BYTES", "SIZES", "TensorFile", "TensorSpec", "TensorWriter"]

SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4}
"""Bytes of one number, by the names of safetensors."""
MOST_HEADER_BYTES = 16 << 20
_DIGEST = "digest"
_NONE = "0" * 32
_OPEN_FILES = "/dev/fd"

Bytes = npt.NDArray[np.uint8]


class TensorSpec(NamedTuple):
    """One tensor of a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return SIZES[self.dtype] * prod(self.shape)


class TensorWriter:
    """Writes a file in slices, from any thread; `discard` waits for another thread's write.

    The file at `path` is unchanged until `finish`; a new one gets `mode`. Tensor data begins at a multiple of `align`
    bytes. Raises OSError.
    """

    def __init__(
        self,
        path: Path,
        tensors: Sequence[TensorSpec],
        metadata: Mapping[str, str],
        align: int = 8,
        mode: int = 0o666,
    ) -> None:
        self._tensors = list(tensors)
        self._align = align
        self._metadata = dict(metadata)
        self._digests = {spec.name: xxhash.xxh3_128() for spec in tensors}
        start = len(self._header(dict.fromkeys(self._digests, _NONE)))
        ends = np.cumsum([start, *(spec.nbytes for spec in tensors)]).tolist()
        self._at: dict[str, int] = {spec.name: at for spec, at in zip(tensors, ends, strict=False)}
        self._end = dict(zip(self._at, ends[1:], strict=True))
        self.nbytes: int = ends[-1]
        """Bytes of the whole file."""
        self.written = 0
        """Bytes of tensors written so far."""
        self._file = FreshFile(path, mode)

    def append(self, name: str, data: Bytes) -> None:
        """Writes the next bytes of a tensor. Raises ValueError for more bytes than the tensor has."""
        if self._at[name] + data.nbytes > self._end[name]:
            raise ValueError(f"more bytes than tensor {name} has")
        flat = np.ascontiguousarray(data).reshape(-1)
        self._digests[name].update(flat.data)
        self._file.write(self._at[name], flat)
        self._at[name] += data.nbytes
        self.written += data.nbytes

    def finish(self) -> None:
        """Moves the complete file to its path and syncs it to disk. Raises ValueError if bytes are missing."""
        unfinished = [name for name, end in self._end.items() if self._at[name] != end]
        if unfinished:
            raise ValueError(f"bytes of {unfinished[0]} are missing")
        self._file.write(0, self._header({name: made.hexdigest() for name, made in self._digests.items()}))
        self._file.put_in_place()

    def discard(self) -> None:
        """Removes the unfinished file; does nothing after `finish`."""
        self._file.discard()

    def _header(self, digests: Mapping[str, str]) -> bytes:
        metadata = {**self._metadata, **{f"{_DIGEST} {name}": digest for name, digest in digests.items()}}
        entries: dict[str, Any] = {"__metadata__": {**metadata, _DIGEST: _header_digest(metadata, self._tensors)}}
        at = 0
        for spec in self._tensors:
            entries[spec.name] = {
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "data_offsets": [at, at + spec.nbytes],
            }
            at += spec.nbytes
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % self._align)
        if len(text) > MOST_HEADER_BYTES:
            raise ValueError(f"a header of {len(text)} bytes; at most {MOST_HEADER_BYTES}")
        return struct.pack("<Q", len(text)) + text


class TensorFile:
    """A memory-mapped file written by TensorWriter, as a context manager.

    Raises TensorFileError, naming the file, for one that is missing, unreadable, no regular file or damaged. Opening
    checks the header; reading a tensor to its end checks the tensor.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: dict[str, Any] = {}
        self._at: dict[str, int] = {}
        with open_regular(path, TensorFileError) as file:
            fd = file.fileno()
            size = os.fstat(fd).st_size
            self._start = 8 + self._header_size(file.read(8), size)
            self.metadata, self.tensors = self._parsed(fd)
            offset = self._start
            self._begin: dict[str, int] = {}
            for spec in self.tensors.values():
                self._begin[spec.name] = offset
                offset += spec.nbytes
            if offset != size:
                raise self.damaged(f"{size} bytes, but its tensors end at {offset}")
            self._map = np.frombuffer(mmap.mmap(fd, size, access=mmap.ACCESS_READ), np.uint8)
            self._fd = os.dup(fd)
        weakref.finalize(self, os.close, self._fd)
        self.nbytes = size
        """Bytes of the whole file."""

    def take(self, name: str, nbytes: int) -> Bytes:
        """The next `nbytes` bytes of a tensor, a read-only view. Checks the tensor's digest after the last of them."""
        spec = self.tensors[name]
        at = self._at.get(name, 0)
        begin = self._begin[name] + at
        part = self._map[begin : begin + nbytes]
        digest = self._read.setdefault(name, xxhash.xxh3_128())
        digest.update(part.data)
        self._at[name] = at + nbytes
        if self._at[name] >= spec.nbytes:
            self._check_digest(name, digest.hexdigest())
        return part

    def whole(self, name: str) -> Bytes:
        """All bytes of a tensor, a read-only view. Checks its digest on every call."""
        begin = self._begin[name]
        part = self._map[begin : begin + self.tensors[name].nbytes]
        self._check_digest(name, xxhash.xxh3_128_hexdigest(part.data))
        return part

    def offset(self, name: str) -> int:
        """Offset in the file at which a tensor begins, in bytes."""
        return self._begin[name]

    def fileno(self) -> int:
        """Descriptor of the opened file, even if its path was replaced; open for as long as this object lives."""
        return self._fd

    def _check_digest(self, name: str, digest: str) -> None:
        if digest != self.metadata.get(f"{_DIGEST} {name}"):
            raise self.damaged(f"the bytes of {printable(name)} are not those that were written")

    def damaged(self, what: str) -> TensorFileError:
        """A TensorFileError that names the file and what is wrong with it, for the caller to raise."""
        return TensorFileError(f"{self._path}: damaged, or no file of agentkv: {what}")

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *_: object) -> None:
        del self._map  # unmapped once nobody has a part of it

    def _header_size(self, first: bytes, size: int) -> int:
        if len(first) < 8:
            raise self.damaged(f"{size} bytes")
        (length,) = struct.unpack("<Q", first)
        if length > min(MOST_HEADER_BYTES, size - 8):
            raise self.damaged(f"a header of {length} bytes in a file of {size}")
        return int(length)

    def _parsed(self, fd: int) -> tuple[dict[str, str], dict[str, TensorSpec]]:
        from safetensors import SafetensorError, safe_open

        try:
            # The open file itself: another one may lie at the path by now, but not on Windows.
            itself = f"{_OPEN_FILES}/{fd}" if os.path.isdir(_OPEN_FILES) else str(self._path)
            with safe_open(itself, "numpy") as opened:
                metadata = dict(opened.metadata() or {})
                tensors = {}
                for name in opened.offset_keys():
                    part = opened.get_slice(name)
                    tensors[name] = TensorSpec(name, part.get_dtype(), tuple(part.get_shape()))
        except (SafetensorError, OSError, ValueError, OverflowError, MemoryError) as error:
            raise self.damaged(printable(str(error))) from error
        unknown = [spec.dtype for spec in tensors.values() if spec.dtype not in SIZES]
        if unknown:
            raise self.damaged(f"a tensor of dtype {printable(unknown[0])}")
        if metadata.pop(_DIGEST, None) != _header_digest(metadata, list(tensors.values())):
            raise self.damaged("its header is not the one that was written")
        return metadata, tensors


def _header_digest(metadata: Mapping[str, str], tensors: Sequence[TensorSpec]) -> str:
    begins = np.cumsum([0, *(spec.nbytes for spec in tensors)]).tolist()
    # By name: tensors without bytes have no order.
    said = json.dumps([sorted(metadata.items()), sorted(zip(tensors, begins, strict=False))])
    return str(xxhash.xxh3_128_hexdigest(said.encode()))
