"""The interface between the SDK and an engine: calls and jobs go in, reports and changes of token logs come out.

Implemented by the native engine and by those over remote servers. All calls come from one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from agentkv_runtime.adapters import AdapterWeights
    from agentkv_runtime.engine import Engine, GenerateOptions, Pin, Stats, StoredBranch

    from .._documents.conversations import SavedConversations
    from .._types.info import EngineCounters

MOST_BRANCHES = 256
SPARE_SEQUENCES = 16  # for concurrent saves, loads and offloads, beside all branches


class LogChange(Protocol):
    """Change of a branch's tokens since the last report: the first `kept` stay, then come `appended` (int32 bytes).

    `epoch` is that of the last token, as `StepEngine.tip` gives it; `adapter` is that of the next token, 0 for none.
    """

    @property
    def branch(self) -> int: ...
    @property
    def kept(self) -> int: ...
    @property
    def appended(self) -> bytes: ...
    @property
    def epoch(self) -> int: ...
    @property
    def adapter(self) -> int: ...


class LogListener(Protocol):
    """Owner of the branches' tokens on the event loop; gets every change before the outcomes that follow it."""

    def apply(self, changes: Iterable[LogChange]) -> None:
        """Applies the engine's changes, in its order."""

    def drop(self, branch: int) -> None:
        """Forgets a closed branch. Idempotent."""


class Emitted(Protocol):
    """One token of a streamed generation."""

    @property
    def job(self) -> int: ...
    @property
    def token(self) -> int: ...
    @property
    def logprob(self) -> float: ...
    @property
    def text(self) -> bytes: ...
    @property
    def top_logprobs(self) -> list[tuple[int, float]]: ...


class FinishedJob(Protocol):
    """The end of a job; `kind` ("extend", "generate", "logits", "select") says which fields are filled."""

    @property
    def job(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def error(self) -> Exception | None: ...
    @property
    def finish_reason(self) -> Any: ...
    @property
    def seconds(self) -> float: ...
    @property
    def first_token_seconds(self) -> float: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def digests(self) -> bytes: ...
    @property
    def logprobs(self) -> list[float]: ...
    @property
    def top_logprobs(self) -> list[list[tuple[int, float]]]: ...
    @property
    def text(self) -> bytes: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def output_began(self) -> int: ...
    @property
    def logits(self) -> npt.NDArray[np.float32] | None: ...
    @property
    def scores(self) -> list[float]: ...


class StepReport(Protocol):
    """One step: its merged rows, the tokens that it emitted, and the jobs that ended, each after its tokens.

    `out_of_room` lists the generations that begin to wait for room. `shares` has a record per branch: (int64 branch,
    int32 kind, rows, drafted, accepted), where kind 0 is prefill, 1 decoding, 2 tokens that are fed again.
    """

    @property
    def idle(self) -> bool: ...
    @property
    def forwards(self) -> int: ...
    @property
    def branches(self) -> int: ...
    @property
    def decode_rows(self) -> int: ...
    @property
    def prefill_rows(self) -> int: ...
    @property
    def shares(self) -> bytes: ...
    @property
    def seconds(self) -> float: ...
    @property
    def forward_seconds(self) -> float: ...
    @property
    def draft_seconds(self) -> float: ...
    @property
    def emitted(self) -> Sequence[Emitted]: ...
    @property
    def finished(self) -> Sequence[FinishedJob]: ...
    @property
    def out_of_room(self) -> Sequence[int]: ...


class StepEngine(Protocol):
    """Branches, and the jobs that run on them. A call validates everything before it changes anything."""

    def create(self, tokens: Iterable[int] | None = None) -> tuple[int, int]:
        """Makes a branch. Returns its id and the number of leading `tokens` shared with another branch; the rest is to
        be extended."""

    def fork(self, branch: int, n: int) -> list[int]:
        """Makes n children that share the branch's history, or none. Returns their ids."""

    def copy(self, branch: int) -> int:
        """Makes a branch in the same state, random stream included."""

    def rollback(self, branch: int, length: int, epoch: int | None = None, keep_forgotten: bool = False) -> None:
        """Truncates to the first `length` tokens; given the epoch of the last one, only if the branch still has that.

        Positions forgotten since are restored, unless forgotten `for_room`, or with `keep_forgotten`.
        """

    def adopt(self, dst: int, src: int) -> None:
        """Replaces dst's history by src's."""

    def forget(self, branch: int, first: int, last: int, for_room: bool = False) -> int:
        """Frees the cells of positions [first, last), whose tokens stay; with `for_room` no rollback restores them.

        Returns the number of cells freed.
        """

    def forgotten(self, branch: int) -> Sequence[tuple[int, int]]:
        """Ranges of forgotten positions."""

    def replace(self, branch: int, first: int, last: int, tokens: Iterable[int]) -> None:
        """Replaces tokens [first, last) by others; the next job feeds all that follows again."""

    def replaceable(self, branch: int) -> int:
        """Number of leading tokens that can be replaced: not the last, and none of an output being generated."""

    def goes_on(self, branch: int, constraint: Any) -> bool:
        """Returns whether a generation under this constraint would continue the branch's last output."""

    def drop_cells_from(self, branch: int, length: int) -> None:
        """Frees the cells from position `length` on; the next job feeds those tokens again."""

    def length(self, branch: int) -> int:
        """Number of tokens, those made by a running job included."""

    def n_cached(self, branch: int) -> int:
        """Number of leading tokens that are in the cache; the next job feeds the others."""

    def n_to_refill(self, branch: int) -> int:
        """Number of history tokens that the next job feeds again first, counted up to the first forgotten position."""

    def n_exclusive_cells(self, branch: int, first: int) -> int:
        """Number of cells that would be freed if the branch had no tokens from position `first` on."""

    def resume(self, job: int, made_room: bool) -> None:
        """Ends the wait of a generation for room; without room it ends the generation."""

    def tip(self, branch: int) -> tuple[int, int]:
        """Identifies the branch's history by its length and the epoch of its last token.

        Only tokens that a branch wrote one after another share an epoch, so the pair identifies a history without a
        comparison of tokens. The epoch is 0 if there are no tokens.
        """

    def tokens(self, branch: int) -> npt.NDArray[np.int32]:
        """Copy of the branch's tokens, int32 [length]."""

    def close(self, branch: int) -> None:
        """Frees a branch and ends its job. Idempotent."""

    def extend(self, branch: int, tokens: Iterable[int]) -> int:
        """Appends tokens. Returns the job's id, as all job methods do."""

    def generate(self, branch: int, options: GenerateOptions) -> int:
        """Samples tokens until an end condition."""

    def logits(self, branch: int) -> int:
        """Computes the next-token logits."""

    def select(self, branch: int, choices: Sequence[Iterable[int]]) -> int:
        """Scores choices as continuations."""

    def cancel(self, job: int) -> None:
        """Ends a job. Idempotent."""

    def undo(self, job: int, kept: int = 0) -> bool:
        """Ends an extend, or a generation that emits, and removes its tokens beyond the first `kept`.

        Returns False if the branch is closed or has changed since: its tokens stay.
        """

    def ack(self, job: int, tokens: int) -> None:
        """Notes that the reader of an emitting generation has read `tokens` more."""

    def settle(self) -> StepReport:
        """Reports the jobs that end without a forward."""

    def step(self) -> StepReport:
        """Runs at most one merged forward over the next rows of every job."""

    def take_changes(self) -> Sequence[LogChange]:
        """Changes of the token logs since the last call."""

    def stats(self) -> Stats:
        """Counters."""

    def cells_of(self, branches: Sequence[int]) -> int:
        """Number of cells that these branches have in the cache, shared ones counted once."""

    def pin(self, branches: Sequence[int]) -> tuple[Pin, Sequence[StoredBranch]]:
        """Pins all cells of these branches, each once, until `unpin`; also returns the branches' present state."""

    def image(self, branch: int) -> StoredBranch:
        """The branch's present state, without rows and the logits behind it."""

    def pin_unshared(self, branches: Sequence[int]) -> Pin:
        """Pins the cells at the ends of branches that no other branch shares, each once. The branches run nothing, or
        wait for room."""

    def reserve(self, rows: int, align: int = 0) -> Pin:
        """Pins `rows` new cells, to be written; with `align`, contiguous from a multiple of it if possible."""

    def pinned_cells(self, pin: int, first: int, count: int) -> Sequence[int]:
        """Current cell indices of rows of a pin."""

    def pinned_dropped_groups(self, pin: int, first: int, count: int) -> npt.NDArray[np.uint8]:
        """For rows of a pin, the number of groups of layers, shortest window first, that store nothing: uint8
        [count]."""

    def discard(self, pin: int, first: int, lacks: npt.NDArray[np.uint8]) -> None:
        """Marks groups of layers of written rows as dropped, as `pinned_dropped_groups` counts them."""

    def unpin(self, pin: int) -> None:
        """Releases a pin; frees the cells that no branch has. Idempotent."""

    def restore(self, pin: int | None, stored: Sequence[StoredBranch]) -> list[int]:
        """Makes branches over the rows of a pin, or without a pin if they have no rows; all or none. Returns their
        ids."""

    def offload(self, branches: Sequence[int], pin: int) -> None:
        """Detaches the cells of `pin_unshared` from the branches; only `close`, `rollback` and `adopt` work on these
        until `reload`. Offloads of one branch add up."""

    def reload(self, branch: int, pin: int | None) -> None:
        """Attaches the rows of this pin as the cells of the branch's last offload. None: they are lost, those of
        earlier offloads as well, and are computed again."""

    def n_offloaded(self, branch: int) -> int:
        """Number of rows of the branch's last offload that are still to come back."""

    def compact(self, retain: int | None = None) -> int:
        """Moves cells to the front; returns the index above all that are in use or retained then."""

    def set_stream(self, branch: int, rng_stream: int, forks: int) -> None:
        """Sets the key of the branch's random numbers."""

    def rng_stream(self, branch: int) -> int:
        """First half of the key of the branch's random numbers."""

    def live(self) -> Sequence[int]:
        """Ids of the branches, oldest first."""

    def set_digests(self, on: bool) -> None:
        """Sets whether generations digest the rows of logits that they sample from. See `FinishedJob.digests`."""


class CellEngine(StepEngine, Protocol):
    """An engine with cells of its own, which branches can give up for each other."""

    def rests(self, branch: int) -> bool:
        """Whether the branch runs nothing, or waits for room."""

    def sharers(self, branch: int) -> Sequence[int]:
        """The branches that have its last cell, itself included; none where it has no cell."""

    def n_running(self) -> int:
        """Number of jobs that take part in steps."""


class PrefixEngine(StepEngine, Protocol):
    """An engine whose prompts may begin with cells that come from elsewhere."""

    def create_prompt(self, tokens: Iterable[int], pin: int | None, parts_at: int, rng_stream: int) -> tuple[int, int]:
        """Makes a branch as `create` does; the tokens begin with the rows of the pin, if any, which it has for those
        that no other branch shares. Others will begin alike up to `parts_at`: what rows from there on look at stays.
        Its random numbers are of a stream by `take_stream`. Returns its id and the number of leading tokens that it
        has."""

    def take_stream(self) -> int:
        """The stream of random numbers that `create` would give a branch now, for one that is made later."""

    def n_reusable(self, tokens: Iterable[int]) -> int:
        """Number of leading tokens that `create` would share."""


class AdapterEngine(StepEngine, Protocol):
    """An engine whose branches may have LoRA adapters, by ids of `AdapterCells.add_adapter`; 0 is none."""

    def create(self, tokens: Iterable[int] | None = None, adapter: int = 0) -> tuple[int, int]:
        """Makes a branch as `StepEngine.create`; its tokens have this adapter."""

    def create_prompt(
        self, tokens: Iterable[int], pin: int | None, parts_at: int, rng_stream: int, adapter: int = 0
    ) -> tuple[int, int]:
        """Makes a branch as `PrefixEngine.create_prompt`; its tokens have this adapter, with which there is no pin."""

    def n_reusable(self, tokens: Iterable[int], adapter: int = 0) -> int:
        """Number of leading tokens that `create` would share."""

    def adapter(self, branch: int) -> int:
        """The adapter of the branch's next token; 0 for none."""

    def set_adapter(self, branch: int, adapter: int) -> None:
        """Gives the branch another adapter from its present end on."""


class PublishingEngine(StepEngine, Protocol):
    """An engine over a server that stores branches under names."""

    def publish(self, branch: int, name: str, conversations: SavedConversations, marks: Mapping[str, int]) -> int:
        """Publishes the branch's present state on the server. Returns the job."""

    def attach(self, branch: int, name: str) -> int:
        """Fills an empty branch with a published one, which `FinishedJob.published` has. Returns the job."""


class CellStore(Protocol):
    """Contents of the cells of an engine's cache."""

    @property
    def kv_bytes(self) -> int:
        """Memory of keys and values now, in bytes."""

    @property
    def mapped_bytes(self) -> int:
        """Keys and values that are pages of files, in bytes; not in `kv_bytes`."""

    @property
    def states(self) -> int:
        """Number of recurrent states stored now."""

    @property
    def cell_bytes(self) -> int:
        """Size of one cell in bytes."""

    @property
    def allocated_cells(self) -> int:
        """Number of cells with memory allocated."""

    @property
    def cell_arrays(self) -> Sequence[tuple[str, str, Sequence[int], int | None]]:
        """Arrays of a cell, in byte order: (name, dtype, shape, group of layers that cells may have dropped)."""

    def read_cells(self, cells: Sequence[int]) -> npt.NDArray[np.uint8]:
        """Reads cells, uint8 [n, bytes of a cell]."""

    def write_cells(self, cells: Sequence[int], bytes: npt.NDArray[np.uint8]) -> None:
        """Writes cells in the form of `read_cells`."""

    @property
    def state_arrays(self) -> Sequence[tuple[str, str, Sequence[int], int | None]]:
        """Arrays of a recurrent state, as `cell_arrays`; some cells have one. Empty if no layer has states."""

    def with_states(self, cells: Sequence[int]) -> Sequence[int]:
        """Indices into `cells` of those that have a state."""

    def read_states(self, cells: Sequence[int]) -> npt.NDArray[np.uint8]:
        """Reads the states of cells that have one, uint8 [n, bytes of a state]."""

    def write_states(self, cells: Sequence[int], bytes: npt.NDArray[np.uint8]) -> None:
        """Writes states of cells in the form of `read_states`."""

    def map_cells(self, first: int, count: int, file: int, offsets: Sequence[int]) -> int:
        """Maps an open file into these cells, head by head of each array; returns the number that are pages of it."""

    def shrink(self, cells: int) -> None:
        """Returns memory above the first `cells` cells to the system, if that is worthwhile."""


class AdapterCells(CellStore, Protocol):
    """The cells of a program that LoRA adapters run beside."""

    def add_adapter(self, weights: AdapterWeights) -> int:
        """Takes a copy of an adapter; returns its id."""


class EngineHost(Protocol):
    """An engine with the resources of the thread that made it."""

    @property
    def engine(self) -> Any:
        """The StepEngine."""

    @property
    def session(self) -> Any:
        """The CellStore."""

    def snapshot(self) -> EngineCounters:
        """Counters of the engine and its cache."""

    def close(self) -> None:
        """Drops references that others may still share."""


if TYPE_CHECKING:
    _ENGINES: tuple[type[PrefixEngine], ...] = (Engine,)
    _ADAPTED: tuple[type[AdapterEngine], ...] = (Engine,)
