"""Layout of a file of saved branches: its document, its tensors, and the rows that its arrays store.

document                  U8 [n]            JSON: a Document
branches.<i>.tokens       I32 [length]      in the order of the document's branches
branches.<i>.rows         I32 [pieces, 3]   first row of the cells, first position, number of rows
logits.<i>                F32 [vocab_size]  next-token logits of the branches that name it
cells.<array>             [rows, ...]       an array of the byte layer, such as layers.0.k
cells.<array>.<head>      [rows, numbers]   instead, in files that can be mapped: a lane, which begins at a
                                            page boundary and is padded to whole pages
lacks                     U8 [rows]         only if some rows have dropped groups: for each row, the number of
                                            groups of layers (layers of one window; shortest window first) that
                                            store nothing
states.rows               I32 [n]           only if some rows have a recurrent state: their indices
states.of.<array>         [n, ...]          the states of these rows

The arrays of a layer have no rows for cells that its window has passed; a lane has zeros there, since its rows are
contiguous. The byte layer gives zeros for them as well. Lanes come first in the file: safetensors knows no gaps, so
tensors that are not whole pages follow them.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from agentkv_runtime.tensor_file import SIZES, TensorSpec
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from .._documents.conversations import Count, DocumentModel, Name, SavedConversations, SavedOutput

if TYPE_CHECKING:
    from agentkv_runtime.tensor_file import Bytes

    from .._chat.conversation import Conversation
    from .._engine.interface import CellStore, StepEngine


FORMAT = "agentkv.branches"
VERSION = "1"
LACKING_VERSION = "3"  # some rows lack something; it may be for mapping, too, which alone is version 2
LACKS = "lacks"
DOCUMENT = "document"
MOST_DOCUMENT_BYTES = 64 << 20
MOST_VALUES = 4_000_000  # of a document: what a small file may make of memory is bounded, too

Int32s = npt.NDArray[np.int32]


class SavedBranch(DocumentModel):
    """A branch in the document: all but its tokens and rows."""

    rng_stream: Annotated[int, Field(ge=0, lt=2**64)]
    forks: Annotated[int, Field(ge=0, lt=2**32)]
    logits: Count | None
    conversation: Count | None
    marks: dict[Name, Count]
    output: SavedOutput | None
    forgotten: tuple[tuple[Count, Count, Count, bool], ...] = ()
    exact_from: Count = 0
    adapters: tuple[tuple[Count, str], ...] = ()
    """First position and digest of each LoRA adapter; an empty digest for none."""

    @model_serializer(mode="wrap")
    def _without_no_adapters(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        if not self.adapters:  # which versions before adapters would refuse
            del fields["adapters"]
        return fields


class Document(DocumentModel):
    """The JSON document of a file: its branches by name, and their conversations."""

    branches: dict[Name, SavedBranch]
    conversations: SavedConversations


class ModelKey(NamedTuple):
    """Identity of the model and cache that saved rows are valid for; stored in the header under these names."""

    model: str
    backend: str
    kv_dtype: str
    tokenizer: str
    window: str = ""

    def metadata(self) -> dict[str, str]:
        """Header entries."""
        return {"format": FORMAT, "version": VERSION, **self._asdict()}


class CellArray(NamedTuple):
    """One array of a cell, and its byte range [begin, end) within the cell."""

    spec: TensorSpec  # of one cell
    begin: int
    end: int
    group: int | None = None  # of layers: cells may be without its rows

    @property
    def nbytes(self) -> int:
        """Size in bytes for one cell."""
        return self.end - self.begin

    def of(self, rows: int) -> TensorSpec:
        """The tensor of this array for `rows` cells."""
        return TensorSpec(f"cells.{self.spec.name}", self.spec.dtype, (rows, *self.spec.shape))


def cell_arrays(described: Sequence[tuple[str, str, Sequence[int], int | None]]) -> list[CellArray]:
    """Converts a byte layer's description of its cells (name, dtype, shape, group) to arrays with byte ranges."""
    arrays: list[CellArray] = []
    for name, dtype, shape, group in described:
        if dtype not in SIZES:
            raise ValueError(f"the byte layer has {dtype} in {name}, which files do not have")
        begin = arrays[-1].end if arrays else 0
        spec = TensorSpec(name, dtype, tuple(shape))
        arrays.append(CellArray(spec, begin, begin + spec.nbytes, group))
    return arrays


@dataclass(frozen=True, slots=True)
class BranchImage:
    """A branch outside of its Context."""

    tokens: Int32s
    rows: Int32s
    rng_stream: int
    forks: int
    next_logits: npt.NDArray[np.float32]  # [0] where they are not known
    conversation: Conversation
    marks: Mapping[str, int] = field(default_factory=dict)
    output: SavedOutput | None = None
    forgotten: Sequence[tuple[int, int, int, bool]] = ()
    exact_from: int = 0
    adapters: Sequence[tuple[int, str]] = ()  # first position and digest; an empty digest for none

    def tensors(self, index: int) -> dict[str, Any]:
        """Its arrays by tensor name."""
        return {f"branches.{index}.tokens": self.tokens, f"branches.{index}.rows": self.rows}


Lacks: TypeAlias = npt.NDArray[np.uint8]


def stored_rows(array: CellArray, lacks: Lacks) -> npt.NDArray[np.bool_]:
    """Mask of the rows that `array` stores, bool [rows]: all rows, or for windowed layers those not yet dropped."""
    return np.ones(len(lacks), np.bool_) if array.group is None else lacks <= array.group


def without_dropped(rows: Bytes, arrays: Sequence[CellArray], lacks: Lacks) -> Bytes:
    """Packs rows [n, bytes of a cell]: without the dropped groups, array by array, flat if any are dropped."""
    if not lacks.any():
        return rows
    return np.concatenate([rows[stored_rows(array, lacks), array.begin : array.end].reshape(-1) for array in arrays])


def with_zeros(left: Bytes, arrays: Sequence[CellArray], lacks: Lacks) -> Bytes:
    """Unpacks rows to [n, bytes of a cell], with zeros for the dropped groups. Inverse of `without_dropped`."""
    if not lacks.any():
        return left
    rows = np.zeros((len(lacks), arrays[-1].end), np.uint8)
    for array in arrays:
        here = stored_rows(array, lacks)
        nbytes = int(here.sum()) * array.nbytes
        rows[here, array.begin : array.end] = left[:nbytes].reshape(-1, array.nbytes)
        left = left[nbytes:]
    return rows


LANES_VERSION = "2"
PAGE = mmap.PAGESIZE
MOST_DIGITS = 12  # of a number in a header


class MappableLayout(NamedTuple):
    """Number of cells of a mappable file, and the page size in bytes that it was made for."""

    rows: int
    page: int

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> MappableLayout | None:
        """Parses header entries; None if they are invalid."""
        said = [metadata.get(name, "") for name in cls._fields]
        if not all(text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS for text in said):
            return None
        lanes = cls(*map(int, said))
        return lanes if lanes.page > 0 else None

    def metadata(self) -> dict[str, str]:
        """Header entries."""
        return {"version": LANES_VERSION, **{name: str(value) for name, value in self._asdict().items()}}

    def tensor(self, lane: CellArray) -> TensorSpec:
        """The tensor of a lane in the file, padding included."""
        return lane.of(-(-self.rows // unit(lane, self.page)) * unit(lane, self.page))

    def padding(self, lane: CellArray) -> int:
        """Number of padding bytes after a lane's last row."""
        return self.tensor(lane).nbytes - self.rows * lane.nbytes


def unit(lane: CellArray, page: int) -> int:
    """Number of rows after which a row starts at a page boundary again."""
    return page // gcd(page, lane.nbytes)


def lanes_of(arrays: Sequence[CellArray]) -> list[CellArray]:
    """Splits the arrays of a cell, [heads, numbers], into one lane per head."""
    lanes: list[CellArray] = []
    for array in arrays:
        heads, *shape = array.spec.shape
        nbytes = array.nbytes // heads
        for head in range(heads):
            begin = array.begin + head * nbytes
            spec = TensorSpec(f"{array.spec.name}.{head}", array.spec.dtype, tuple(shape))
            lanes.append(CellArray(spec, begin, begin + nbytes, array.group))
    return lanes


def alignment(lanes: Sequence[CellArray]) -> int:
    """Multiple of cells at which a range must begin for keys and values to be whole pages; scales may still be none."""
    return unit(max(lanes, key=lambda lane: lane.nbytes), PAGE)


STATE_ROWS = "states.rows"
STATES = "states.of."
"""Tensor names of recurrent states: the rows that have one, and the prefix of each array's name."""
BLOCK = 64  # positions, at the last of which the CPU's layers keep a state

Rows = npt.NDArray[np.int32]


class LayerStates(NamedTuple):
    """Recurrent states of the pinned rows: the arrays that a state consists of, and the rows that have one."""

    arrays: Sequence[CellArray]
    rows: Rows

    @property
    def at_once(self) -> int:
        """Number of states read or written between two forwards."""
        return max(1, (16 << 20) // self.arrays[-1].end) if self.arrays else 1

    def slices(self) -> list[Rows]:
        """The rows, in slices of `at_once`."""
        return [self.rows[first : first + self.at_once] for first in range(0, len(self.rows), self.at_once)]


def states_of(hold: int, count: int, engine: StepEngine, cells: CellStore) -> LayerStates:
    """Recurrent states of the `count` rows of a pin."""
    arrays = cell_arrays(cells.state_arrays)
    rows = cells.with_states(engine.pinned_cells(hold, 0, count)) if arrays else []
    return LayerStates(arrays, np.asarray(rows, np.int32))


def _cells_of(hold: int, rows: Rows, engine: StepEngine) -> list[int]:
    return [engine.pinned_cells(hold, int(row), 1)[0] for row in rows]


def read_states(hold: int, rows: Rows, engine: StepEngine, cells: CellStore) -> Bytes:
    """Reads the states of some rows of a pin, uint8 [n, bytes of a state]."""
    return cells.read_states(_cells_of(hold, rows, engine))


def write_states(hold: int, rows: Rows, states: Bytes, engine: StepEngine, cells: CellStore) -> None:
    """Writes the states of some rows of a pin, uint8 [n, bytes of a state]."""
    cells.write_states(_cells_of(hold, rows, engine), states)


def first_missing_state(states: LayerStates, lacks: Lacks, branches: Sequence[BranchImage]) -> int | None:
    """First row that ends a block, is stored, and has no state; None if there is none."""
    if not states.arrays:
        return None
    group = states.arrays[0].group
    assert group is not None, "layers with states have a window"
    ends = np.zeros(len(lacks), np.bool_)
    for branch in branches:
        for row, position, count in branch.rows:
            first = int(row) + (BLOCK - 1 - int(position)) % BLOCK
            ends[first : int(row) + int(count) : BLOCK] = True
    ends[states.rows] = False
    missing = np.flatnonzero(ends & (lacks <= group))
    return int(missing[0]) if len(missing) else None


def spec_of_states(array: CellArray, rows: int) -> TensorSpec:
    """The tensor of `rows` states."""
    return TensorSpec(STATES + array.spec.name, array.spec.dtype, (rows, *array.spec.shape))
