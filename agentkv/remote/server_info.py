"""What a server says of the model that it serves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Facts:
    """One server's model, and its cache.

    Attributes:
        model: its name there.
        max_positions: tokens of one branch.
        capacity: tokens that its cache holds; 0 where it does not say.
        vocab_size: 0 where it does not say: then it is the tokenizer's.
        fingerprint: of the model; empty where it does not say.
        bit_exact: does a branch's history determine its logits to the bit?
        likely: so many of the likeliest next tokens are told; None for all.
        folder: the model's, where it is on this machine, too.
        tokenizer_files: by name; empty where it does not hand them out.
        call_format: how the model writes calls, as a model folder names it.
        cache: what it makes of keys and values, as `ModelInfo.cache` has it; empty where it does not say, or where
            several servers differ in it.
        kv_dtype, window, sinks, quantize_after: as `ModelInfo` has them.
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
