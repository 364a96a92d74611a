"""Architectures whose layers have one feed-forward network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentkv_runtime.gguf.architectures.architecture import Architecture
from agentkv_runtime.gguf.architectures.families import (
    ATTENTION,
    GATED,
    HEAD_NORMS,
    NORMS,
    OUTER,
    SANDWICH_NORMS,
    biased,
    llama,
    shifted,
)
from agentkv_runtime.gguf.architectures.layout import Layout, Sizes
from agentkv_runtime.gguf.architectures.windows import FULL, SLIDING, layer_types
from agentkv_runtime.gguf.keys import Keys
from agentkv_runtime.gguf.rope import rope_parameters

__all__ = ["DENSE"]

Config = dict[str, Any]


def always(architecture: Architecture) -> Callable[[Keys], Architecture]:
    """For names that stand for one architecture."""
    return lambda _keys: architecture


def biases(keys: Keys, *names: str) -> bool:
    """Do these weights have biases? Raises UnsupportedModelError where only some of them do."""
    there = [name for name in names if keys.has(f"blk.0.{name}.bias")]
    if there and len(there) < len(names):
        keys.unsupported(f"{there[0]} has a bias and {next(name for name in names if name not in there)} has none")
    return bool(there)


_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
_GATED = ("ffn_gate", "ffn_up", "ffn_down")


def _llama_settings(keys: Keys, _: Sizes) -> Config:
    return {"attention_bias": biases(keys, *_ATTENTION), "mlp_bias": biases(keys, *_GATED)}


_QWEN2_ATTENTION = {
    **ATTENTION,
    "self_attn.q_proj": biased("attn_q"),
    "self_attn.k_proj": biased("attn_k"),
    "self_attn.v_proj": biased("attn_v"),
}


def _gemma3_settings(keys: Keys, sizes: Sizes) -> Config:
    window = keys.whole("attention.sliding_window", 0)
    local = keys.number("rope.freq_base_swa", 10000.0)
    soft = keys.number("final_logit_softcapping", 0.0)
    return {
        # Only the largest, which has 62 layers, scales by another number than its heads have.
        "query_pre_attn_scalar": sizes.hidden // sizes.heads if sizes.layers == 62 else sizes.head_dim,
        "sliding_window": window or None,
        "layer_types": layer_types(keys, sizes.layers, 6) if window else [FULL] * sizes.layers,
        "rope_parameters": {
            FULL: rope_parameters(keys, sizes.head_dim),
            SLIDING: {"rope_type": "default", "rope_theta": local},  # turned by positions as they are
        },
        "final_logit_softcapping": soft or None,
        "attn_logit_softcapping": None,
    }


DENSE: dict[str, Callable[[Keys], Architecture]] = {
    "llama": always(Architecture("llama", llama(), _llama_settings)),
    "qwen2": always(Architecture("qwen2", llama(_QWEN2_ATTENTION, GATED))),
    "qwen3": always(Architecture("qwen3", llama({**ATTENTION, **HEAD_NORMS}, GATED))),
    "gemma3": always(
        Architecture(
            "gemma3_text",
            Layout(
                {**shifted({**SANDWICH_NORMS, **HEAD_NORMS}), **ATTENTION, **GATED},
                {**OUTER, **shifted({"model.norm": "output_norm"})},
            ),
            _gemma3_settings,
        )
    ),
}
"""By llama.cpp's names; which one it is may depend on the file."""
