"""What an open model is: `ctx.model_info`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
