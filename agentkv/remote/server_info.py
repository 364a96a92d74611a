"""Facts that a server reports about its model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """One server's model, and its cache.

    Attributes:
        model: name of the model on the server.
        max_positions: most tokens of one branch.
        capacity: tokens in the server's cache; 0 if unknown.
        vocab_size: number of tokens; 0 if unknown, then it is the tokenizer's.
        fingerprint: fingerprint of the model; empty if unknown.
        bit_exact: whether a branch's history determines its logits to the bit.
        likely: number of next-token log-probabilities that the server reports; None for all.
        folder: folder of the model, where this machine has it.
        tokenizer_files: contents by file name; empty where the server does not send them.
        call_format: form in which the model writes calls, as a model folder names it.
        cache: cache configuration as in `ModelInfo.cache`; empty if unknown, or where several servers differ.
        kv_dtype, window, sinks, quantize_after: as in `ModelInfo`.
    """

    model: str
    max_positions: int
    capacity: int = 0
    vocab_size: int = 0
    fingerprint: str = ""
    bit_exact: bool = False
    likely: int | None = None
    folder: Path | None = None
    tokenizer_files: dict[str, str] = field(default_factory=dict)
    call_format: str | None = None
    quantization: str = ""
    cache: str = ""
    kv_dtype: str = ""
    window: int | None = None
    sinks: int = 0
    quantize_after: int | None = None
    n_layers: int = 0
    n_kv_heads: int = 0
    head_dim: int = 0
