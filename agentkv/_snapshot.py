"""What a file of saved branches holds: its document, and how its tensors are named.

document                  U8 [n]            JSON: a Document
branches.<i>.tokens       I32 [length]      in the order of the document's branches
branches.<i>.rows         I32 [pieces, 3]   from which row of the cells, to which position, how many
logits.<i>                F32 [vocab_size]  next-token logits of the branches that name it
cells.<array>             [rows, ...]       what the byte layer says that a cell holds, such as layers.0.k; in files
                                              that can be mapped otherwise, see `_lanes.py`
lacks                     U8 [rows]         only where some rows lack something, see `_lacking.py`: the arrays of these
                                              layers have no rows for them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from agentkv_runtime.tensor_file import SIZES, TensorSpec
from pydantic import Field

from ._saved_conversations import Count, Name, Saved, SavedConversations, SavedOutput

if TYPE_CHECKING:
    from ._conversation import Conversation

FORMAT = "agentkv.branches"
VERSION = "1"
LACKING_VERSION = "3"  # some rows lack something; it may be for mapping, too, which alone is version 2
LACKS = "lacks"
DOCUMENT = "document"
MOST_DOCUMENT_BYTES = 64 << 20
MOST_VALUES = 4_000_000  # of a document: what a small file may make of memory is bounded, too

Int32s = npt.NDArray[np.int32]


class SavedBranch(Saved):
    """A branch, without its tokens and rows."""

    rng_stream: Annotated[int, Field(ge=0, lt=2**64)]
    forks: Annotated[int, Field(ge=0, lt=2**32)]
    logits: Count | None
    conversation: Count | None
    marks: dict[Name, Count]
    output: SavedOutput | None
    forgotten: tuple[tuple[Count, Count, Count, bool], ...] = ()
    exact_from: Count = 0


class Document(Saved):
    """What a file says of its branches, by name."""

    branches: dict[Name, SavedBranch]
    conversations: SavedConversations


class ModelKey(NamedTuple):
    """What must be the same for rows to be worth anything: saved in the header, under these names."""

    model: str
    backend: str
    kv_dtype: str
    tokenizer: str
    window: str = ""

    def metadata(self) -> dict[str, str]:
        """For the header."""
        return {"format": FORMAT, "version": VERSION, **self._asdict()}


class CellArray(NamedTuple):
    """One array of what a cell holds, and where it lies in the bytes of a cell."""

    spec: TensorSpec  # of one cell
    begin: int
    end: int
    group: int | None = None  # of layers: cells may be without its rows

    @property
    def nbytes(self) -> int:
        """Of one cell."""
        return self.end - self.begin

    def of(self, rows: int) -> TensorSpec:
        """The tensor of so many cells."""
        return TensorSpec(f"cells.{self.spec.name}", self.spec.dtype, (rows, *self.spec.shape))


def cell_arrays(described: Sequence[tuple[str, str, Sequence[int], int | None]]) -> list[CellArray]:
    """What a byte layer says that its cells hold."""
    arrays: list[CellArray] = []
    for name, dtype, shape, group in described:
        if dtype not in SIZES:
            raise ValueError(f"the byte layer has {dtype} in {name}, which files do not have")
        begin = arrays[-1].end if arrays else 0
        spec = TensorSpec(name, dtype, tuple(shape))
        arrays.append(CellArray(spec, begin, begin + spec.nbytes, group))
    return arrays


@dataclass(frozen=True, slots=True)
class BranchState:
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

    def tensors(self, index: int) -> dict[str, Any]:
        """Its arrays, by the names of their tensors."""
        return {f"branches.{index}.tokens": self.tokens, f"branches.{index}.rows": self.rows}
