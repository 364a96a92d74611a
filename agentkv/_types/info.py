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
        path: the model folder; over a server, the model's name there.
        backend: "cpu", "mlx" or "torch", or the kind of server: "agentkv" or "vllm".
        vocab_size: columns of the logits.
        max_tokens: maximum rows per forward; larger steps take several forwards.
        max_positions: maximum tokens per branch, because the model knows no later position; None where the model
            does not say.
        trained_positions: positions that the model was trained on, where its config says that they are fewer: beyond
            them quality may drop. The first branch that gets there is logged as a warning.
        n_layers, n_kv_heads, head_dim: shape of the cache; 0 where a server does not report it.
        quantization: format of the weights.
        kv_dtype: dtype of keys and values in the cache.
        quantize_after: number of newest positions of each branch that stay in `kv_dtype`, while older ones are stored
            as int8; None: all stay.
        window: number of positions that layers look back at most; None where a layer looks back without limit.
        sinks: number of first positions that every layer sees in addition to the window.
        state_bytes: size in bytes of one recurrent state over all layers that have one (linear attention, scans). Each
            of `ctx.stats.states` takes this much of `kv_bytes`. 0 where no layer has one.
        forgets: whether positions before the last can be forgotten (`Branch.forget`). False where a layer has recurrent
            states, which contain all that came before.
        bit_exact: whether a branch's history alone determines its logits to the bit, whatever other branches run.
        fingerprint: SHA-256 of the program in hex; empty where there is none.
        top_logits: number of the most likely next tokens that `Branch.logits` covers; None: the whole vocabulary.
        speculates: whether strategies of `kv.spec` draft here. False over a server, which drafts as configured there.
        holds_cells: whether the cells of a branch last as long as it is open, so that fork, rollback and adopt
            recompute nothing. A server keeps them only while it has room.
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
        """Cache configuration (dtype, quantisation, window). Equal models with equal `cache` give equal logits for
        equal tokens."""
        kind = self.kv_dtype if self.quantize_after is None else f"{self.kv_dtype}, int8 after {self.quantize_after}"
        return kind if self.window is None else f"{kind}, a window of {self.window} behind {self.sinks}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """One server of a remote Context, at the moment of the query; frozen.

    Attributes:
        url: as passed to `Context.connect`.
        answers: whether it is sent requests now. A server that failed is skipped for a while.
        running: requests of this Context in progress there.
        requests: number of requests sent to it since the Context was opened.
        failed: of these, the requests that got no answer or a broken one, or that it had no room for.
        seconds: total duration of ended requests, in seconds.
        error: message of the last of `failed`; None once a later request has succeeded.
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
        """Mean duration of ended requests, streams included, in seconds; 0 before the first one."""
        ended = self.requests - self.running
        return self.seconds / ended if ended else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """One model of `kv.open_models`, at the moment of the query; frozen.

    Attributes:
        name: its name there.
        is_open: whether it takes memory now.
        uses: number of blocks of `use` that run.
        bytes: size of its weights, and of keys and values of a full cache; of its files alone before it was opened.
        opens: number of times that it was opened.
    """

    name: str
    is_open: bool
    uses: int
    bytes: int
    opens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counters of a Context since it was opened, and its current cells, as of the last completed method call; frozen.

    Attributes:
        steps: rounds of the step loop that ran a forward.
        forwards: forwards of the model; a step needs several where it exceeds the program's bounds, or is retried.
        tokens: tokens fed to the model (rows), `prefilled` and decoded together.
        prefilled: of these, tokens of prompts and `extend`.
        refed: of these, tokens of a branch's own history whose cells had been freed: a rollback went behind what a
            window or `forget` left, or tokens before them left the branch. The last of them counts with what follows.
        generated: sampled tokens.
        reused: tokens of prompts that were in the cache already, or computed for another prompt at the same time. Over
            a server each request names its whole history, and the part that the server had cached counts.
        recalled: of these, tokens that only closed branches had left in the cache (`Context.open`'s `retain`).
        drafted: draft tokens that the model verified.
        accepted: of these, tokens that the model accepted.
        forced: tokens that a constraint determined, and that were run in one forward with the token before them.
        retries: forwards that were run again, for one branch alone, after a forward of several had failed. Over a
            server: requests that were sent again.
        rows_per_step: number of steps by number of rows, {rows: steps}.
        branches: live branches.
        cells: cache cells with memory allocated: those in use and a few more, up to `capacity`.
        cells_used: of these, cells of live branches. Over a server: tokens of live branches, shared ones counted once,
            cached there or not.
        cells_shared: of these, cells of two or more branches.
        cells_retained: cells that closed branches left, for prompts with the same prefix; freed on demand, and no part
            of `cells_used`.
        capacity: maximum number of cells.
        kv_bytes: memory of keys and values now, in bytes: 2 x layers x `cells` x n_kv_heads x head_dim x bytes of one
            number, and up to a page for each head and layer; int8 and int4 add a float32 scale per row, on MLX a
            float16 scale and bias per group of 64 or 32 numbers. On the CPU it is a few percent above what the cells in
            use or retained take, and follows them up; MLX and torch double it. Cells that are pages of a file
            (`Context.load(..., shared=True)`) are not in it.
        kv_bytes_shared: keys and values that are pages of files, in bytes: in memory once for all processes that map
            them, and evictable by the system. Pages that are written to become part of `kv_bytes`.
        states: stored recurrent states of layers of linear attention and scans: one at the end of each block of 64
            positions that a branch may go back to, and those of closed branches until the Context is idle or compacted.
            Each takes `ctx.model_info.state_bytes`, which are in `kv_bytes`. Tokens run again to get from one to where
            a rollback went are `refed`, where their rows were freed too.
        forward_seconds: time spent inside the model's forwards, in seconds.
        draft_seconds: time spent drafting, in seconds.
        draft_bytes: memory now of the text that `kv.spec.Suffix` and `kv.spec.PromptLookup` draft from, in bytes.
        prefix_cache_hits: prompts that began with tokens from disk (`Context.open`'s `prefix_cache`).
        prefix_cache_tokens: tokens of these that came from there; they are among `reused`.
        prefix_cache_bytes: size of the files that were read for them, in bytes.
        prefix_cache_written: entries written.
        offloads: times that branches which waited gave up cells for others (`Context.open`'s `offload`).
        offload_memory_bytes: bytes of such cells in memory now.
        offload_disk_bytes: bytes of such cells on disk now.
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
    draft_bytes: int = 0
    prefix_cache_hits: int = 0
    prefix_cache_tokens: int = 0
    prefix_cache_bytes: int = 0
    prefix_cache_written: int = 0
    offloads: int = 0
    offload_memory_bytes: int = 0
    offload_disk_bytes: int = 0
    constraint_seconds: float = 0.0
    mask_seconds: float = 0.0

    @property
    def cells_free(self) -> int:
        """Cells of no live branch, retained ones included."""
        return self.capacity - self.cells_used

    @property
    def mean_rows(self) -> float:
        """Rows per step on average; 0 before the first step."""
        return self.tokens / self.steps if self.steps else 0.0


_OF_CELLS = ("cells", "kv_bytes", "kv_bytes_shared", "states")
_OF_ENGINE = [
    f.name
    for f in fields(Stats)
    if f.name not in (*_OF_CELLS, "rows_per_step") and not f.name.startswith(("prefix_cache_", "offload"))
]


class EngineCounters(NamedTuple):
    """Counters as the step loop's thread takes them after every round: the conversion to Stats is left to the
    reader."""

    engine: engine.Stats
    cells: int
    kv_bytes: int
    kv_bytes_shared: int
    states: int

    def stats(self) -> Stats:
        """Converts to the public type."""
        return Stats(
            **{name: getattr(self.engine, name) for name in _OF_ENGINE},
            rows_per_step={rows: steps for rows, steps in enumerate(self.engine.rows_per_step) if steps},
            cells=self.cells,
            kv_bytes=self.kv_bytes,
            kv_bytes_shared=self.kv_bytes_shared,
            states=self.states,
        )


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of the step loop; frozen.

    Attributes:
        branches: branches that had rows in it.
        decode_rows: tokens that generations fed: one each, and the draft tokens to verify.
        prefill_rows: tokens of prompts and `extend`.
        forwards: number of forwards; 1 unless it exceeded the program's bounds or was retried.
        began: start on the clock of `time.perf_counter`, in seconds.
        seconds: duration, in seconds.
        forward_seconds: of these, inside the model's program.
        draft_seconds: of these, inside drafters.
    """

    branches: int
    decode_rows: int
    prefill_rows: int
    forwards: int
    began: float
    seconds: float
    forward_seconds: float
    draft_seconds: float
