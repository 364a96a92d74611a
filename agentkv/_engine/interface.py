"""The interface between the SDK and an engine: verbs and jobs go in, reports and changes of logs come out.

The native engine fills it; another one, such as a remote server's, may. All calls come from one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from agentkv_runtime.engine import Engine, GenerateOptions, Pin, Stats, StoredBranch

    from .._documents.conversations import SavedConversations
    from .._types.info import Snapshot

MOST_BRANCHES = 256
SPARE_SEQUENCES = 16  # for what is saved, loaded or set aside at one time, beside all branches


class LogChange(Protocol):
    """How a branch's tokens differ from those told last: the first `kept` stay, then come `appended` (int32 bytes).

    `epoch` is that of the last token, as `StepEngine.tip` says.
    """

    @property
    def branch(self) -> int: ...
    @property
    def kept(self) -> int: ...
    @property
    def appended(self) -> bytes: ...
    @property
    def epoch(self) -> int: ...


class LogListener(Protocol):
    """Keeper of the branches' tokens on the event loop: hears every change before the outcomes that follow it."""

    def apply(self, changes: Iterable[LogChange]) -> None:
        """Takes over what the engine did, in its order."""

    def drop(self, branch: int) -> None:
        """The branch was closed. Idempotent."""


class Emitted(Protocol):
    """One token of a generation that hands out its tokens as they come."""

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


class Finished(Protocol):
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
    """One step: what it merged, the tokens that it emitted and the jobs that ended, each job after its tokens.

    `out_of_room` are generations that wait for room from now on. `shares` says what each branch had in it: (int64
    branch, int32 kind, rows, drafted, accepted), where kind 0 is prefill, 1 decoding, 2 tokens that are fed again.
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
    def finished(self) -> Sequence[Finished]: ...
    @property
    def out_of_room(self) -> Sequence[int]: ...


class StepEngine(Protocol):
    """Branches, and the jobs that run on them. A call checks everything before it changes anything."""

    def create(self, tokens: Iterable[int] | None = None) -> tuple[int, int]:
        """A new branch, and how many of `tokens` it found in another one; the rest is to be extended."""

    def fork(self, branch: int, n: int) -> list[int]:
        """n children that share the branch's history, or none."""

    def copy(self, branch: int) -> int:
        """A branch in the same state, random stream included."""

    def rollback(self, branch: int, length: int, epoch: int | None = None, keep_forgotten: bool = False) -> None:
        """Keeps the first `length` tokens; given the epoch of the last one, only if the branch still has that.

        What was forgotten since is taken back, unless it made room or is to be kept.
        """

    def adopt(self, dst: int, src: int) -> None:
        """dst takes over src's history."""

    def forget(self, branch: int, first: int, last: int, for_room: bool = False) -> int:
        """Positions [first, last) keep their tokens and lose their cells; with `for_room` no rollback takes it back.

        Returns how many cells are free for it.
        """

    def forgotten(self, branch: int) -> Sequence[tuple[int, int]]:
        """The ranges of positions that were forgotten."""

    def replace(self, branch: int, first: int, last: int, tokens: Iterable[int]) -> None:
        """Tokens [first, last) give way to others; all that follows them is fed again by the next job."""

    def replaceable(self, branch: int) -> int:
        """Tokens before this position can be replaced: not the last, and none of an output that is being generated."""

    def goes_on(self, branch: int, constraint: Any) -> bool:
        """Would a generation under this constraint go on with the output that the branch was asked for last?"""

    def drop_cells_from(self, branch: int, length: int) -> None:
        """The cache keeps the first `length` tokens, at most; the next job feeds the others again."""

    def length(self, branch: int) -> int:
        """Its tokens, those that a running job made included."""

    def n_cached(self, branch: int) -> int:
        """How many of them are in the cache, from the first on; the next job feeds the others."""

    def n_to_refill(self, branch: int) -> int:
        """How many of them the next job feeds before all else, up to where some of these are forgotten."""

    def n_exclusive_cells(self, branch: int, first: int) -> int:
        """How many cells are free for it once the branch has no token any more from position `first` on."""

    def resume(self, job: int, made_room: bool) -> None:
        """Ends the wait of a generation for room; without room it ends."""

    def tip(self, branch: int) -> tuple[int, int]:
        """Which history the branch has: its length, and the epoch of its last token.

        Tokens that a branch wrote one after another share an epoch, and no others have it: so the two name a history,
        without a look at tokens. 0 where there is none.
        """

    def tokens(self, branch: int) -> npt.NDArray[np.int32]:
        """The branch's tokens, a copy: int32 [length]."""

    def close(self, branch: int) -> None:
        """Frees a branch and ends its job; harmless for one that is closed."""

    def extend(self, branch: int, tokens: Iterable[int]) -> int:
        """Appends tokens. Returns the job, as all of these do."""

    def generate(self, branch: int, options: GenerateOptions) -> int:
        """Samples tokens until something ends it."""

    def logits(self, branch: int) -> int:
        """The next-token logits."""

    def select(self, branch: int, choices: Sequence[Iterable[int]]) -> int:
        """Scores choices as continuations."""

    def cancel(self, job: int) -> None:
        """Ends a job; one that has ended is left as it is."""

    def undo(self, job: int, kept: int = 0) -> bool:
        """Ends an extend, or a generation that emits, and undoes it as far as it made more than `kept` tokens.

        False where the branch is closed or went on since: what it made stays.
        """

    def ack(self, job: int, tokens: int) -> None:
        """The reader of what a generation emits has taken so many more tokens."""

    def settle(self) -> StepReport:
        """What ends without a forward."""

    def step(self) -> StepReport:
        """At most one merged forward over the next row of every job."""

    def take_changes(self) -> Sequence[LogChange]:
        """How the logs differ from what the last call said."""

    def stats(self) -> Stats:
        """Counters."""

    def cells_of(self, branches: Sequence[int]) -> int:
        """How many cells these branches have in the cache, those that several have once."""

    def pin(self, branches: Sequence[int]) -> tuple[Pin, Sequence[StoredBranch]]:
        """Every cell of these branches, once each, and the branches as they are now. The cells stay until `unpin`."""

    def pin_unshared(self, branch: int) -> Pin:
        """The cells of an idle branch that nobody else has."""

    def reserve(self, rows: int, align: int = 0) -> Pin:
        """So many new cells, to be written; with `align`, in a row from a multiple of it on if there are such cells."""

    def pinned_cells(self, pin: int, first: int, count: int) -> Sequence[int]:
        """Where rows of a pin lie now."""

    def pinned_dropped_groups(self, pin: int, first: int, count: int) -> npt.NDArray[np.uint8]:
        """uint8 [count]: of how many groups of layers, from the shortest window on, rows of a pin hold nothing."""

    def discard(self, pin: int, first: int, lacks: npt.NDArray[np.uint8]) -> None:
        """Rows that were written hold nothing in these layers, as pinned_dropped_groups said it."""

    def unpin(self, pin: int) -> None:
        """Lets cells go that nobody else has; harmless for a pin that was let go of."""

    def restore(self, pin: int | None, stored: Sequence[StoredBranch]) -> list[int]:
        """New branches over the rows of a pin, or without one where they have no rows; all or none."""

    def offload(self, branch: int, pin: int) -> None:
        """The branch lets go of what `pin_unshared` gave; no verb but close works on it until it is back."""

    def reload(self, branch: int, pin: int) -> None:
        """What was set aside lies in the rows of this pin now."""

    def compact(self, retain: int | None = None) -> int:
        """Moves cells to the front; returns the first one above all that are in use or retained then."""

    def set_stream(self, branch: int, rng_stream: int, forks: int) -> None:
        """The key of the branch's random numbers."""

    def rng_stream(self, branch: int) -> int:
        """The first half of that."""

    def live(self) -> Sequence[int]:
        """The branches, oldest first."""

    def set_digests(self, on: bool) -> None:
        """Do generations digest the rows of logits that they draw from, from now on? See `Finished.digests`."""


class PublishingEngine(StepEngine, Protocol):
    """An engine over a server that keeps branches under names."""

    def publish(self, branch: int, name: str, conversations: SavedConversations, marks: Mapping[str, int]) -> int:
        """The server keeps the branch as it is now. Returns the job."""

    def attach(self, branch: int, name: str) -> int:
        """A branch without tokens becomes what the server keeps; `Finished` has it as `published`. Returns the job."""


class CellStore(Protocol):
    """What is in the cells of an engine's cache."""

    @property
    def kv_bytes(self) -> int:
        """Memory of keys and values now, in bytes."""

    @property
    def mapped_bytes(self) -> int:
        """Keys and values that are pages of files, beside that."""

    @property
    def states(self) -> int:
        """States that are kept now."""

    @property
    def cell_bytes(self) -> int:
        """What one cell takes."""

    @property
    def allocated_cells(self) -> int:
        """Cells that have memory now."""

    @property
    def cell_arrays(self) -> Sequence[tuple[str, str, Sequence[int], int | None]]:
        """(name, dtype, shape, group of layers that cells may lack) of what a cell holds, in the order of its bytes."""

    def read_cells(self, cells: Sequence[int]) -> npt.NDArray[np.uint8]:
        """uint8 [n, bytes of a cell]."""

    def write_cells(self, cells: Sequence[int], bytes: npt.NDArray[np.uint8]) -> None:
        """What read_cells gave, back into these cells."""

    @property
    def state_arrays(self) -> Sequence[tuple[str, str, Sequence[int], int | None]]:
        """The same of a state, which some cells have beside that; empty where no layer keeps states."""

    def with_states(self, cells: Sequence[int]) -> Sequence[int]:
        """Which of these cells, by their index, have states."""

    def read_states(self, cells: Sequence[int]) -> npt.NDArray[np.uint8]:
        """uint8 [n, bytes of a state], of cells that have one."""

    def write_states(self, cells: Sequence[int], bytes: npt.NDArray[np.uint8]) -> None:
        """What read_states gave becomes the states of these cells."""

    def map_cells(self, first: int, count: int, file: int, offsets: Sequence[int]) -> int:
        """These cells become those of an open file, head by head of each array; returns how many are pages of it."""

    def shrink(self, cells: int) -> None:
        """Gives memory above the first `cells` cells back, as far as that is worth it."""


class EngineHost(Protocol):
    """An engine, and what stays with the thread that made it."""

    @property
    def engine(self) -> Any:
        """A StepEngine."""

    @property
    def session(self) -> Any:
        """A CellStore."""

    def snapshot(self) -> Snapshot:
        """Counters of the engine and its cache."""

    def close(self) -> None:
        """Lets go of what others may still refer to."""


if TYPE_CHECKING:
    _ENGINES: tuple[type[StepEngine], ...] = (Engine,)
