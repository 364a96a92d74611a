"""Reading and validating files of saved branches."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from agentkv_runtime.errors import TensorFileError
from agentkv_runtime.tensor_file import Bytes, TensorFile, TensorSpec
from pydantic import ValidationError

from .._documents.conversations import reach_of
from .._types.errors import InvalidInput, SnapshotError, advice_of
from .layout import (
    DOCUMENT,
    FORMAT,
    LACKING_VERSION,
    LACKS,
    LANES_VERSION,
    MOST_DOCUMENT_BYTES,
    MOST_VALUES,
    STATE_ROWS,
    STATES,
    VERSION,
    BranchImage,
    CellArray,
    Document,
    Lacks,
    LayerStates,
    MappableLayout,
    ModelKey,
    first_missing_state,
    lanes_of,
    spec_of_states,
    stored_rows,
)
from .writer import values_in

DTYPES = {"I32": np.int32, "F32": np.float32, "U8": np.uint8}


class SnapshotFile:
    """A file of saved branches, mapped; all but its cells is read and checked on opening.

    Raises SnapshotError for a file that is missing, unreadable, damaged, of another kind or a later version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = TensorFile(path)
            self._check_format()
            self.document = self._document()
            self.branches = self._states()
            self._lanes = self._said_lanes()
            self._rows_of = self._cells()
            self.lacks = self._lacks()
            self._taken = 0
        except TensorFileError as error:
            if not os.path.lexists(path):
                raise SnapshotError(f"there is no file {path}; check the path") from error
            raise SnapshotError(f"{error}; {_advice(path, error)}") from error

    @property
    def key(self) -> ModelKey:
        """Identity of the model and cache that the branches were saved from."""
        return ModelKey(*(self._file.metadata.get(name, "") for name in ModelKey._fields))

    @property
    def nbytes(self) -> int:
        """Size of the file in bytes."""
        return self._file.nbytes

    @property
    def shareable(self) -> bool:
        """Whether its cells are laid out in lanes that can be mapped."""
        return self._lanes is not None

    def parts(self, arrays: list[CellArray]) -> list[CellArray]:
        """The arrays of a cell as this file stores them: split into lanes if it is shareable."""
        return lanes_of(arrays) if self.shareable else arrays

    @property
    def rows(self) -> int:
        """Number of cells."""
        return len(self.lacks)

    @property
    def arrays(self) -> set[TensorSpec]:
        """The arrays of one cell."""
        return set(self._rows_of)

    def check_rows(self, arrays: Sequence[CellArray]) -> None:
        """Raises SnapshotError unless each of its arrays has the number of rows that `lacks` requires."""
        groups = {array.group for array in arrays} - {None}
        if self.lacks.max(initial=0) > len(groups):
            raise self.damaged(f"its rows lack more groups of layers than the {len(groups)} that there are")
        for array in arrays:
            if self._rows_of[array.spec] != (self.rows if self._lanes else int(stored_rows(array, self.lacks).sum())):
                raise self.damaged(f"{array.spec.name} has not the rows that the others leave to it")

    def offsets(self, lanes: Sequence[CellArray]) -> list[int]:
        """Byte offsets of lanes in the file."""
        return [self._file.offset(f"cells.{lane.spec.name}") for lane in lanes]

    def fileno(self) -> int:
        """File descriptor of the open file."""
        return self._file.fileno()

    def check_lanes(self, lanes: Sequence[CellArray]) -> None:
        """Reads lanes and compares their digests. Raises SnapshotError."""
        try:
            for lane in lanes:
                self._file.whole(f"cells.{lane.spec.name}")
        except TensorFileError as error:
            raise SnapshotError(f"{error}; save the branches again") from error

    def next_cells(self, count: int, arrays: Sequence[CellArray]) -> Bytes:
        """Reads the next cells, uint8 [count, bytes of a cell]; digests are checked with the last of them. Raises
        SnapshotError."""
        lacks = self.lacks[self._taken : self._taken + count]
        out = np.zeros((count, arrays[-1].end), np.uint8)
        self._taken += count
        try:
            for array in arrays:
                name = f"cells.{array.spec.name}"
                here = stored_rows(array, lacks) if self._lanes is None else np.ones(count, np.bool_)
                if here.any():
                    part = self._file.take(name, int(here.sum()) * array.nbytes)
                    out[here, array.begin : array.end] = part.reshape(-1, array.nbytes)
                if self._lanes is not None and self._taken == self.rows and self._lanes.padding(array):
                    self._file.take(name, self._lanes.padding(array))
        except TensorFileError as error:
            raise SnapshotError(f"{error}; save the branches again") from error
        return out

    def states(self, arrays: Sequence[CellArray]) -> LayerStates:
        """Its rows with recurrent states of these arrays. Raises SnapshotError if a required state is missing."""
        if not arrays:
            return LayerStates((), np.zeros(0, np.int32))
        try:
            rows = self._array(STATE_ROWS, "I32", (-1,))
        except TensorFileError as error:
            raise SnapshotError(f"{error}; save the branches again") from error
        states = LayerStates(arrays, rows)
        if len(rows) and (rows.min() < 0 or rows.max() >= self.rows or len(set(rows.tolist())) < len(rows)):
            raise self.damaged("it has states of rows that are not there")
        for array in arrays:
            if self._file.tensors.get(STATES + array.spec.name) != spec_of_states(array, len(rows)):
                raise self.damaged(f"it has no good states of {array.spec.name}")
        missing = first_missing_state(states, self.lacks, list(self.branches.values()))
        if missing is not None:
            raise self.damaged(f"its row {missing} has no state")
        return states

    def next_states(self, count: int, states: LayerStates) -> Bytes:
        """Reads the next states, uint8 [count, bytes of a state]; digests are checked with the last of them. Raises
        SnapshotError."""
        out = np.empty((count, states.arrays[-1].end), np.uint8)
        try:
            for array in states.arrays:
                part = self._file.take(STATES + array.spec.name, count * array.nbytes)
                out[:, array.begin : array.end] = part.reshape(-1, array.nbytes)
        except TensorFileError as error:
            raise SnapshotError(f"{error}; save the branches again") from error
        return out

    def damaged(self, what: str) -> SnapshotError:
        """The error for a file with invalid content."""
        return SnapshotError(f"{self._file.damaged(what)}; save the branches again")

    def _check_format(self) -> None:
        metadata = self._file.metadata
        if metadata.get("format") != FORMAT:
            raise self._file.damaged("it holds no branches")
        if metadata.get("version") not in (VERSION, LANES_VERSION, LACKING_VERSION):
            raise SnapshotError(
                f"{self.path}: version {metadata.get('version')} of the format, but this agentkv reads {VERSION} to "
                f"{LACKING_VERSION}; load it with the agentkv that saved it"
            )

    def _document(self) -> Document:
        spec = self._file.tensors.get(DOCUMENT)
        if spec is None or spec.dtype != "U8" or spec.nbytes > MOST_DOCUMENT_BYTES:
            raise self._file.damaged("it has no document")
        text = self._file.whole(DOCUMENT).tobytes()
        if values_in(text) > MOST_VALUES:
            raise self._file.damaged("its document has too many values")
        try:
            return Document.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise self._file.damaged(f"its document has no good {'.'.join(map(str, first['loc']))!r}") from error

    def _states(self) -> dict[str, BranchImage]:
        try:
            conversations = self.document.conversations.made()
        except (InvalidInput, ValueError) as error:
            raise self._file.damaged(f"its messages: {error}") from error
        states: dict[str, BranchImage] = {}
        # Logits by index: each is read once, however many branches name it.
        rows: dict[int | None, npt.NDArray[np.float32]] = {None: np.zeros(0, np.float32)}
        for index, (name, saved) in enumerate(self.document.branches.items()):
            tokens = self._array(f"branches.{index}.tokens", "I32", (-1,))
            if saved.conversation is None or saved.conversation >= len(conversations):
                raise self._file.damaged(f"branch {name!r} has no conversation")
            conversation = conversations[saved.conversation]
            reaches = reach_of(conversation, saved.marks)
            if reaches > len(tokens):
                raise self._file.damaged(f"branch {name!r} has {len(tokens)} tokens, but something at {reaches}")
            if saved.logits not in rows:
                rows[saved.logits] = self._logits(f"logits.{saved.logits}")
            states[name] = BranchImage(
                tokens=tokens,
                rows=self._array(f"branches.{index}.rows", "I32", (-1, 3)),
                rng_stream=saved.rng_stream,
                forks=saved.forks,
                next_logits=rows[saved.logits],
                conversation=conversation,
                marks=saved.marks,
                output=saved.output,
                forgotten=saved.forgotten,
                exact_from=saved.exact_from,
                adapters=saved.adapters,
            )
        return states

    def _logits(self, name: str) -> npt.NDArray[np.float32]:
        row = self._array(name, "F32", (-1,))
        if row.size and not np.isfinite(row.max()):  # NaN, +inf, or all -inf
            raise self._file.damaged(f"{name} is no distribution: its highest is {row.max()}")
        return row

    def _array(self, name: str, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        spec = self._file.tensors.get(name)
        fits = spec is not None and spec.dtype == dtype and len(spec.shape) == len(shape)
        if spec is None or not fits or spec.shape[1:] != shape[1:]:
            raise self._file.damaged(f"no {name} of the right shape")
        return self._file.whole(name).view(DTYPES[dtype]).reshape(spec.shape).copy()

    def _said_lanes(self) -> MappableLayout | None:
        version = self._file.metadata["version"]
        if version == VERSION or (version == LACKING_VERSION and "page" not in self._file.metadata):
            return None
        lanes = MappableLayout.of(self._file.metadata)
        if lanes is None:
            raise self._file.damaged("its header has no good number of rows, or size of pages")
        return lanes

    def _cells(self) -> dict[TensorSpec, int]:
        """Number of rows of each array."""
        rows: dict[TensorSpec, int] = {}
        for name, spec in self._file.tensors.items():
            if not name.startswith("cells."):
                continue
            if not spec.shape:
                raise self._file.damaged(f"{name} has no rows")
            array = TensorSpec(name.removeprefix("cells."), spec.dtype, spec.shape[1:])
            rows[array] = spec.shape[0] if self._lanes is None else self._lane_rows(self._lanes, array, spec)
        if not rows:
            raise self._file.damaged("it has no cells")
        return rows

    def _lacks(self) -> Lacks:
        most = max(self._rows_of.values())
        if self._file.metadata["version"] == LACKING_VERSION:
            lacks = self._array(LACKS, "U8", (-1,))
            if len(lacks) >= most:
                return lacks
        elif min(self._rows_of.values()) == most:
            return np.zeros(most, np.uint8)
        raise self._file.damaged("its arrays do not have the same rows")

    def _lane_rows(self, lanes: MappableLayout, array: TensorSpec, spec: TensorSpec) -> int:
        lane = CellArray(array, 0, array.nbytes)
        if not array.nbytes or lanes.tensor(lane) != spec or self._file.offset(spec.name) % lanes.page:
            raise self._file.damaged(f"{spec.name} is not {lanes.rows} rows on pages of {lanes.page} bytes")
        return lanes.rows


def _advice(path: Path, error: TensorFileError) -> str:
    """Remedy for a file that cannot be opened."""
    if os.path.exists(path) and not os.path.isfile(path):
        return "give the path of a file of saved branches"
    return advice_of(error.__cause__, "save the branches again")
