"""Cell interfaces of a remote Context, which has no cells in this process."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._types.errors import InvalidInput
from .reports import EmptyPin

if TYPE_CHECKING:
    from .branches import BranchTable


class NullCellStore:
    """Implements `CellStore` without cells, as they are on the server."""

    kv_bytes = mapped_bytes = states = cell_bytes = allocated_cells = 0
    # One array without numbers, as files of branches need a layout.
    cell_arrays: Sequence[tuple[str, str, Sequence[int], int | None]] = (("none", "U8", (1,), None),)
    state_arrays: Sequence[tuple[str, str, Sequence[int], int | None]] = ()

    def read_cells(self, cells: Sequence[int]) -> npt.NDArray[np.uint8]:
        return np.zeros((len(cells), 1), np.uint8)

    def write_cells(self, cells: Sequence[int], bytes: npt.NDArray[np.uint8]) -> None:
        pass

    def with_states(self, cells: Sequence[int]) -> Sequence[int]:
        return ()

    def read_states(self, cells: Sequence[int]) -> npt.NDArray[np.uint8]:
        return np.zeros((0, 0), np.uint8)

    def write_states(self, cells: Sequence[int], bytes: npt.NDArray[np.uint8]) -> None:
        pass

    def map_cells(self, first: int, count: int, file: int, offsets: Sequence[int]) -> int:
        return 0

    def shrink(self, cells: int) -> None:
        pass


class NullCellVerbs:
    """Methods of `StepEngine` on cells. Stored and offloaded branches consist of their tokens."""

    def __init__(self, branches: BranchTable, vocab_size: int) -> None:
        self.branches = branches
        self.vocab_size = vocab_size

    def check_tokens(self, tokens: Iterable[int], what: str = "there is") -> list[int]:
        """The ids as ints. Raises InvalidInput for ids outside the vocabulary."""
        given = [int(token) for token in tokens]  # numpy's are no JSON
        if given and not 0 <= min(given) <= max(given) < self.vocab_size:
            wrong = next(token for token in given if not 0 <= token < self.vocab_size)
            raise InvalidInput(f"{what} token id {wrong}, but ids are from 0 to {self.vocab_size - 1}")
        return given

    def cells_of(self, branches: Sequence[int]) -> int:
        return 0

    def pin(self, branches: Sequence[int]) -> tuple[EmptyPin, Sequence[Any]]:
        from agentkv_runtime.engine import StoredBranch

        none, unknown = np.zeros((0, 3), np.int32), np.zeros(0, np.float32)
        found = [self.branches.at(branch) for branch in branches]
        return EmptyPin(), [
            StoredBranch(b.log, none, rng_stream=b.stream, forks=b.forks, next_logits=unknown) for b in found
        ]

    def image(self, branch: int) -> Any:
        _, (image,) = self.pin([branch])
        return image

    def pin_unshared(self, branches: Sequence[int]) -> EmptyPin:
        for branch in branches:
            self.branches.idle(branch)
        return EmptyPin()

    def reserve(self, rows: int, align: int = 0) -> EmptyPin:
        return EmptyPin(rows=rows)

    def pinned_cells(self, hold: int, first: int, count: int) -> Sequence[int]:
        return ()

    def pinned_dropped_groups(self, hold: int, first: int, count: int) -> npt.NDArray[np.uint8]:
        return np.zeros(count, np.uint8)

    def discard(self, hold: int, first: int, lacks: npt.NDArray[np.uint8]) -> None:
        pass

    def unpin(self, hold: int) -> None:
        pass

    def restore(self, hold: int | None, stored: Sequence[Any]) -> list[int]:
        self.branches.check_room(len(stored))
        for each in stored:
            self.check_tokens(each.tokens)
            if len(each.forgotten):
                raise InvalidInput(
                    "a branch of the file forgot tokens, and a server would have them again; load it in this process"
                )
        return [self.branches.restore(array("i", each.tokens), each.rng_stream, each.forks).id for each in stored]

    def offload(self, branches: Sequence[int], hold: int) -> None:
        for branch in branches:
            self.branches.idle(branch)

    def reload(self, branch: int, hold: int | None) -> None:
        self.branches.at(branch)

    def n_offloaded(self, branch: int) -> int:
        return 0

    def compact(self, retain: int | None = None) -> int:
        return 0
