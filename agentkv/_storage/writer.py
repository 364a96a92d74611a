"""Writing files of saved branches: all but the cells first, then the cells slice by slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from agentkv_runtime.tensor_file import Bytes, TensorSpec, TensorWriter

from .._documents.conversations import ConversationWriter
from .._types.errors import InvalidInput
from .layout import (
    DOCUMENT,
    LACKING_VERSION,
    LACKS,
    MOST_DOCUMENT_BYTES,
    MOST_VALUES,
    STATE_ROWS,
    STATES,
    BranchImage,
    CellArray,
    Document,
    Lacks,
    LayerStates,
    MappableLayout,
    ModelKey,
    SavedBranch,
    spec_of_states,
    stored_rows,
)

Tensors = dict[str, npt.NDArray[Any]]


def begin_file(
    path: Path,
    key: ModelKey,
    arrays: Sequence[CellArray],
    lacks: Lacks,
    branches: Mapping[str, BranchImage],
    lanes: MappableLayout | None,
    states: LayerStates,
    mode: int = 0o666,
) -> TensorWriter:
    """Creates a file of this mode, complete but for its cells (arrays, or with `lanes` lanes) and its states.

    Raises OSError; InvalidInput for messages that cannot be saved.
    """
    tensors = _tensors(branches)
    metadata = key.metadata() | (lanes.metadata() if lanes else {})
    if lacks.any():
        tensors[LACKS] = lacks
        metadata["version"] = LACKING_VERSION
    if states.arrays:
        tensors[STATE_ROWS] = states.rows
    specs = [_spec(name, array) for name, array in tensors.items()]
    behind = [spec_of_states(array, len(states.rows)) for array in states.arrays]
    if lanes is None:
        cells = [array.of(int(stored_rows(array, lacks).sum())) for array in arrays]
        writer = TensorWriter(path, [*specs, *cells, *behind], metadata, mode=mode)
    else:
        writer = TensorWriter(path, [*map(lanes.tensor, arrays), *specs, *behind], metadata, lanes.page, mode)
    try:
        for name, array in tensors.items():
            writer.append(name, array.view(np.uint8))
    except BaseException:
        writer.discard()
        raise
    return writer


def append_cells(writer: TensorWriter, arrays: Sequence[CellArray], rows: Bytes, lacks: Lacks) -> None:
    """Appends cells, uint8 [n, bytes of a cell], without dropped groups. Raises OSError."""
    for array in arrays:
        writer.append(f"cells.{array.spec.name}", rows[stored_rows(array, lacks), array.begin : array.end])


def append_states(writer: TensorWriter, states: LayerStates, some: Bytes) -> None:
    """Appends states, uint8 [n, bytes of a state]. Raises OSError."""
    for array in states.arrays:
        writer.append(STATES + array.spec.name, some[:, array.begin : array.end])


def append_padding(writer: TensorWriter, lanes: MappableLayout, arrays: Sequence[CellArray]) -> None:
    """Appends the padding after the last row of each lane. Raises OSError."""
    for array in arrays:
        writer.append(f"cells.{array.spec.name}", np.zeros(lanes.padding(array), np.uint8))


def _tensors(branches: Mapping[str, BranchImage]) -> Tensors:
    conversations = ConversationWriter()
    logits: dict[bytes, tuple[int, npt.NDArray[np.float32]]] = {}
    saved: dict[str, SavedBranch] = {}
    tensors: Tensors = {}
    for index, (name, state) in enumerate(branches.items()):
        row = None
        if state.next_logits.size:  # forks have the same ones
            row, _ = logits.setdefault(state.next_logits.tobytes(), (len(logits), state.next_logits))
        saved[name] = SavedBranch(
            rng_stream=state.rng_stream,
            forks=state.forks,
            logits=row,
            conversation=conversations.add(state.conversation),
            marks=dict(state.marks),
            output=state.output,
            forgotten=tuple(state.forgotten),
            exact_from=state.exact_from,
            adapters=tuple(state.adapters),
        )
        tensors |= state.tensors(index)
    tensors |= {f"logits.{index}": row for index, row in logits.values()}
    try:
        text = Document(branches=saved, conversations=conversations.result()).model_dump_json().encode()
        Document.model_validate_json(text).conversations.made()  # what is written can be read
    except (InvalidInput, ValueError, RecursionError) as error:
        raise InvalidInput(f"the messages of these branches cannot be saved: {error}") from error
    if len(text) > MOST_DOCUMENT_BYTES or values_in(text) > MOST_VALUES:
        raise InvalidInput(
            f"the messages of these branches make a document of {len(text)} bytes, more than a file may have; save "
            "fewer branches in one file"
        )
    return {DOCUMENT: np.frombuffer(text, np.uint8), **tensors}


def _spec(name: str, array: npt.NDArray[Any]) -> TensorSpec:
    dtype = {np.dtype(np.uint8): "U8", np.dtype(np.int32): "I32", np.dtype(np.float32): "F32"}[array.dtype]
    return TensorSpec(name, dtype, array.shape)


def values_in(text: bytes) -> int:
    """Upper bound of the number of values in a JSON text."""
    return sum(text.count(mark) for mark in (b",", b"[", b"{", b":"))
