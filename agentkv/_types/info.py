"""Read-only facts about a Context: its model, its counters, and the servers of a remote one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from agentkv_runtime import engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Facts of an open model; frozen.

    Attributes:
        path: the folder that was opened; over a server, the model's name there.
        backend: what runs it: "cpu", "mlx" or "torch", or the kind of server: "agentkv" or "vllm".
        vocab_size: columns of the logits.
        max_tokens: rows that one forward takes at most; larger steps take several forwards.
        max_positions: tokens that a branch may hold, because the model knows no later position; None where the model
            does not say.
        trained_positions: of these, those that the model was trained on, where its config tells that they are fewer:
            beyond them it may say worse things. The first branch that gets there is logged as a warning.
        n_layers, n_kv_heads, head_dim: shape of the cache; 0 where a server does not say.
        quantization: of the weights.
        kv_dtype: of keys and values in the cache.
        quantize_after: of all but the newest so many positions of each branch they are held as int8; None: of none.
        window: no layer looks further back than so many positions; None where one does.
        sinks: but for the first so many positions, which all of them look at.
        state_bytes: of one state over all layers that keep some (linear attention, scans): of `kv_bytes`, each of
            `ctx.stats.states` takes so many. 0 where no layer does.
        forgets: can positions before the last be forgotten (`Branch.forget`)? Not where a layer keeps states, which
            hold all that came before.
        bit_exact: does a branch's history determine its logits to the bit, whatever runs beside it?
        fingerprint: SHA-256 of the program; empty where there is none.
        top_logits: `Branch.logits` knows so many of the likeliest next tokens alone; None: all of them.
        speculates: do strategies of `kv.spec` draft here? Not over a server, which drafts as it was started to.
        holds_cells: are the cells of a branch there for as long as it is open, so that fork, rollback and adopt compute
            nothing anew? A server has them for as long as it has room.
    """

    path: Path
    backend: str
    vocab_size: int
    max_tokens: int
    max_positions: int | None
    trained_positions: int | None
    n_layers: int
    n_kv_heads: int
    head_dim: int
    quantization: str
    kv_dtype: str
    quantize_after: int | None
    window: int | None
    sinks: int
    state_bytes: int
    forgets: bool
    bit_exact: bool
    fingerprint: str
    top_logits: int | None = None
    speculates: bool = True
    holds_cells: bool = True

    @property
    def cache(self) -> str:
        """What the cache makes of keys and values: with the model, all that bits depend on beside a branch's tokens."""
        kind = self.kv_dtype if self.quantize_after is None else f"{self.kv_dtype}, int8 after {self.quantize_after}"
        return kind if self.window is None else f"{kind}, a window of {self.window} behind {self.sinks}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """One server of a remote Context, as of the moment that it was asked for; frozen.

    Attributes:
        url: as it was given to `Context.connect`.
        answers: is it given requests now? One that failed is left alone for a while.
        running: requests of this Context that it has now.
        requests: that it was given since the Context was opened.
        failed: of these, those that it did not answer, broke off, or had no room for.
        seconds: that requests which have ended took together, in seconds.
        error: what the last of `failed` came to; None where the one after it came to its end.
    """

    url: str
    answers: bool
    running: int
    requests: int
    failed: int
    seconds: float
    error: str | None

    @property
    def mean_seconds(self) -> float:
        """Of a request that has ended, streams included; 0 before the first one."""
        ended = self.requests - self.running
        return self.seconds / ended if ended else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counters of a Context since it was opened, and the cells that it holds, as of the last completed verb; frozen.

    Attributes:
        steps: rounds of the step loop that ran a forward.
        forwards: forwards of the model; a step needs several where it exceeds the program's bounds, or is retried.
        tokens: tokens fed to the model (rows), `prefilled` and decoded together.
        prefilled: of these, tokens of prompts and `extend`.
        refed: of these, tokens of a branch's own history whose cells had been let go: a rollback went behind what a
            window or `forget` left, or tokens before them left the branch. The last of them counts with what follows.
        generated: tokens that were sampled.
        reused: tokens of prompts that were in the cache already, or computed for another prompt at the same time. Over
            a server each request names its whole history, and counts what the server had of it.
        recalled: of these, tokens that no live branch had: closed branches had left them (`Context.open`'s `retain`).
        drafted: draft tokens that the model verified.
        accepted: of these, tokens that the model went on with.
        forced: tokens that a constraint left no choice about, and that were run with the token before them.
        retries: forwards that were run again, for one branch alone, after a forward of several had failed. Over a
            server: requests that were sent again.
        rows_per_step: how many steps had how many rows, {rows: steps}.
        branches: live branches.
        cells: cache cells that have memory now: those in use and a few more, up to `capacity`.
        cells_used: of these, cells that some live branch holds. Over a server: tokens that the live branches hold, each
            counted once, whatever its cache has of them.
        cells_shared: of these, cells that two or more branches hold.
        cells_retained: cells that closed branches left, for prompts that begin alike; they are free to whoever needs
            them, and no part of `cells_used`.
        capacity: cells that the cache may hold.
        kv_bytes: memory of keys and values now, in bytes: 2 x layers x `cells` x n_kv_heads x head_dim x bytes of one
            number, and up to a page for each head and layer; int8 and int4 add a float32 scale per row, on MLX a
            float16 scale and bias per group of 64 or 32 numbers. On the CPU it is a few percent above what the cells in
            use or retained take, and follows them up; MLX and torch double it. Cells that are pages of a file
            (`Context.load(..., shared=True)`) are not in it.
        kv_bytes_shared: keys and values that are pages of files, in bytes: in memory once for all who map them, and the
            system may take them back. What is written becomes part of `kv_bytes`.
        states: states that are kept: of layers of linear attention and scans, one at the end of each block of 64
            positions that a branch may go back to, and those of closed branches until the Context is idle or compacted.
            Each takes `ctx.model_info.state_bytes`, which are in `kv_bytes`. Tokens run again to get from one to where
            a rollback went are `refed`, where their rows were let go too.
        forward_seconds: time spent inside the model's forwards, in seconds.
        draft_seconds: time spent drafting, in seconds.
        constraint_seconds: time that steps waited for constraints, in seconds.
        mask_seconds: time spent on the masks of constraints, mostly beside forwards, in seconds.
    """

    steps: int = 0
    forwards: int = 0
    tokens: int = 0
    prefilled: int = 0
    refed: int = 0
    generated: int = 0
    reused: int = 0
    recalled: int = 0
    drafted: int = 0
    accepted: int = 0
    forced: int = 0
    retries: int = 0
    rows_per_step: Mapping[int, int] = field(default_factory=dict)
    branches: int = 0
    cells: int = 0
    cells_used: int = 0
    cells_shared: int = 0
    cells_retained: int = 0
    capacity: int = 0
    kv_bytes: int = 0
    kv_bytes_shared: int = 0
    states: int = 0
    forward_seconds: float = 0.0
    draft_seconds: float = 0.0
    constraint_seconds: float = 0.0
    mask_seconds: float = 0.0

    @property
    def cells_free(self) -> int:
        """Cells that no live branch holds, retained ones included."""
        return self.capacity - self.cells_used

    @property
    def mean_rows(self) -> float:
        """Rows per step on average; 0 before the first step."""
        return self.tokens / self.steps if self.steps else 0.0


_OF_CELLS = ("cells", "kv_bytes", "kv_bytes_shared", "states")
_OF_ENGINE = [f.name for f in fields(Stats) if f.name not in (*_OF_CELLS, "rows_per_step")]


class Snapshot(NamedTuple):
    """The counters as the step loop's thread takes them: after every round, so as little as possible is done there."""

    engine: engine.Stats
    cells: int
    kv_bytes: int
    kv_bytes_shared: int
    states: int

    def stats(self) -> Stats:
        """The same for users."""
        return Stats(
            **{name: getattr(self.engine, name) for name in _OF_ENGINE},
            rows_per_step={rows: steps for rows, steps in enumerate(self.engine.rows_per_step) if steps},
            cells=self.cells,
            kv_bytes=self.kv_bytes,
            kv_bytes_shared=self.kv_bytes_shared,
            states=self.states,
        )
