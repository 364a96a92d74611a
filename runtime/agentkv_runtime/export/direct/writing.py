"""A program's file, written front to back while its weights are packed a few rows at a time.

    header | body's blob | head's blob | weights, each from a page on

Weights are named by a digest of their bytes, known once they are packed. All names have the same length, so that the
size of header and blobs, which contain them, is known before.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from agentkv_runtime._core import pack_blocks
from agentkv_runtime.export.cpu.blob import Program
from agentkv_runtime.export.cpu.blob_weights import Blocks
from agentkv_runtime.export.direct import pte
from agentkv_runtime.export.direct.decoder import Decoder
from agentkv_runtime.export.direct.pte import Delegate, Kernel, Planned, ScalarType, Segment, Tensor
from agentkv_runtime.export.linear_table import linear_table
from agentkv_runtime.folder.manifest import LinearLayers
from agentkv_runtime.folder.metadata import write_kv_cache_metadata
from agentkv_runtime.gguf.weights import RowBlocks

__all__ = ["write_program"]

_BACKEND = "AgentKVCPU"
_UNKNOWN = f"linear_{'0' * 64}"
_PAGE = 4096
_BLOB_ALIGNMENT = 128
_PIECE_BYTES = 4 << 20
_PIECE_ROWS = 64  # of which panels are whole parts
_THREADS = 2  # packing is slower than a disk; more than two threads are not

Rows = npt.NDArray[np.uint8]


def write_program(
    decoder: Decoder, path: Path, max_tokens: int, max_logits: int, wrote: Callable[[float], None]
) -> dict[str, LinearLayers]:
    """Writes the program of a decoder; `wrote` gets the finished share of the weights, 0 to 1. Returns its linear
    layers by the names of their weights.

    Raises OSError, and InvalidTensor for blocks that hold no numbers.
    """
    regions = (decoder.body(), decoder.head())
    weights = [weight for region in regions for weight in region.weights if isinstance(weight, Blocks)]
    for weight in weights:
        weight.name = _UNKNOWN
    layout = _Layout(decoder, regions, max_tokens, max_logits, {id(each.parts[0]) for each in weights})
    with path.open("wb") as file, ThreadPoolExecutor(_THREADS) as packing:
        file.seek(layout.weights_at)
        named: dict[str, Segment] = {}
        known: dict[tuple[int, ...], str] = {}  # a tied head is the embedding
        total = sum(_size(weight) for weight in weights)
        over = 0
        for weight in weights:
            key = tuple(id(part) for part in weight.parts)
            if key not in known:
                known[key] = _append(file, weight, packing, named, layout.base)
            weight.name = known[key]
            over += _size(weight)
            wrote(over / total)
        layout.write_front(file, list(named.items()))
    return linear_table(regions)


@dataclass
class _Layout:
    """Offsets of a program's parts in the file."""

    decoder: Decoder
    regions: tuple[Program, Program]
    max_tokens: int
    max_logits: int
    distinct: set[int]
    """Ids of distinct weights, which bound the number of weights in the file."""

    def __post_init__(self) -> None:
        placeholders = [(f"{i:071}", Segment(1, 1)) for i in range(len(self.distinct))]
        self.blobs = self._blobs()
        self.base = _aligned(len(self._header(placeholders, base=0)), pte.HEADER_ALIGNMENT)
        self.weights_at = self.base + _aligned(self.blobs[-1].offset + self.blobs[-1].size, _PAGE)

    def write_front(self, file: BinaryIO, named: list[tuple[str, Segment]]) -> None:
        """Writes header and blobs, in front of the weights, whose names must be known."""
        file.seek(0)
        file.write(self._header(named, self.base))
        for region, segment in zip(self.regions, self.blobs, strict=True):
            file.seek(self.base + segment.offset)
            file.write(region.pack())

    def _blobs(self) -> list[Segment]:
        found: list[Segment] = []
        at = 0
        for region in self.regions:
            found.append(Segment(at, len(region.pack())))
            at = _aligned(at + found[-1].size, _BLOB_ALIGNMENT)
        return found

    def _header(self, named: list[tuple[str, Segment]], base: int) -> bytes:
        metadata = self.decoder.metadata
        hidden, vocab = self.decoder.hidden_size, self.decoder.vocab_size
        rows = 4 * hidden * self.max_tokens
        tokens, position, wanted, states, chosen, dim, logits = range(7)
        program = pte.Program(
            values=[
                Tensor(ScalarType.INT64, (self.max_tokens,)),
                Tensor(ScalarType.INT64, (self.max_tokens,)),
                Tensor(ScalarType.INT64, (self.max_logits,)),
                Tensor(ScalarType.FLOAT32, (1, self.max_tokens, hidden), Planned(0)),
                Tensor(ScalarType.FLOAT32, (1, self.max_logits, hidden), Planned(rows)),
                1,
                Tensor(ScalarType.FLOAT32, (self.max_logits, vocab)),
            ],
            inputs=(tokens, position, wanted),
            outputs=(logits,),
            calls=[
                Delegate(_BACKEND, 0, (tokens, position, states)),
                Kernel("aten::index_select", "out", (states, dim, wanted, chosen, chosen)),
                Delegate(_BACKEND, 1, (chosen, logits)),
            ],
            memory=rows + 4 * hidden * self.max_logits,
            constants=write_kv_cache_metadata(
                n_layers=metadata.n_layers,
                n_kv_heads=metadata.n_kv_heads,
                head_dim=metadata.head_dim,
                windows=metadata.windows,
                shapes=metadata.shapes,
            ),
            segments=[*self.blobs, *(segment for _, segment in named)],
            named={name: len(self.blobs) + i for i, (name, _) in enumerate(named)},
        )
        return pte.pack_program(program, base)


def _append(file: BinaryIO, weight: Blocks, packing: ThreadPoolExecutor, named: dict[str, Segment], base: int) -> str:
    """Appends a packed weight to the file, unless the file has equal bytes already; returns its name."""
    start = _aligned(file.tell(), _PAGE)
    file.seek(start)
    digest = hashlib.sha256()
    size = 0
    for piece in _packed(weight, packing):
        digest.update(piece)
        file.write(piece)
        size += len(piece)
    digest.update(str((weight.type, [(*part.shape[:-1], part.row_bytes) for part in weight.parts])).encode())
    name = f"linear_{digest.hexdigest()}"
    if name in named:
        file.seek(start)
        file.truncate()
    else:
        named[name] = Segment(start - base, size)
    return name


def _packed(weight: Blocks, packing: ThreadPoolExecutor) -> Iterator[bytes]:
    """Yields the packed weight, a few panels at a time."""
    ahead: deque[Future[bytes]] = deque()
    for rows in _pieces(weight):
        ahead.append(packing.submit(pack_blocks, rows, weight.type))
        if len(ahead) > _THREADS:
            yield ahead.popleft().result()
    while ahead:
        yield ahead.popleft().result()


def _pieces(weight: Blocks) -> Iterator[Rows]:
    """Yields the concatenated rows of a weight's parts, some panels at a time."""
    parts: list[RowBlocks] = weight.parts
    step = max(_PIECE_BYTES // parts[0].row_bytes // _PIECE_ROWS, 1) * _PIECE_ROWS
    gathered: list[Rows] = []
    left = step
    for part in parts:
        rows = part.rows()
        for at in _cuts(len(rows), left, step):
            gathered.append(rows[at : at + left])
            left -= len(gathered[-1])
            if not left:
                yield np.concatenate(gathered)
                gathered, left = [], step
    if gathered:
        yield np.concatenate(gathered)


def _cuts(height: int, first: int, step: int) -> list[int]:
    """Starts of the pieces of a part: the first has `first` rows, others `step`."""
    return [0, *range(first, height, step)]


def _size(weight: Blocks) -> int:
    return sum(int(np.prod(part.shape[:-1])) * part.row_bytes for part in weight.parts)


def _aligned(at: int, to: int) -> int:
    return -(-at // to) * to
