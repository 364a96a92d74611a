"""Architectures with one feed-forward network per layer: Llama and similar."""

from __future__ import annotations

from typing import Any

from agentkv_runtime.gguf.architectures.architecture import Architecture
from agentkv_runtime.gguf.architectures.families import (
    ATTENTION,
    GATED,
    HEAD_NORMS,
    MAYBE_BIASED_ATTENTION,
    MAYBE_BIASED_GATED,
    NORMS,
    OUTER,
    PERMUTED_ATTENTION,
    POST_NORMS,
    SANDWICH_NORMS,
    Choice,
    always,
    biased,
    biases,
    llama,
    shifted,
    with_maybe_biases,
)
from agentkv_runtime.gguf.architectures.layout import Layout, Names, Sizes
from agentkv_runtime.gguf.architectures.windows import FULL, SLIDING, layer_types
from agentkv_runtime.gguf.architectures.xielu import activations
from agentkv_runtime.gguf.keys import Keys
from agentkv_runtime.gguf.rope import rope_parameters

__all__ = ["DENSE", "QWEN2_ATTENTION", "attention_bias", "granite_settings"]

Config = dict[str, Any]

_UNGATED: Names = {"mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
QWEN2_ATTENTION: Names = {
    "self_attn.q_proj": biased("attn_q"),
    "self_attn.k_proj": biased("attn_k"),
    "self_attn.v_proj": biased("attn_v"),
    "self_attn.o_proj": "attn_output",
}


def attention_bias(keys: Keys, _: Sizes) -> Config:
    """The setting `attention_bias`: whether the projections of attention have biases."""
    return {"attention_bias": biases(keys, "attn_q", "attn_k", "attn_v", "attn_output")}


def _biases(keys: Keys, sizes: Sizes) -> Config:
    return attention_bias(keys, sizes) | {"mlp_bias": biases(keys, "ffn_gate", "ffn_up", "ffn_down")}


def _ungated_biases(keys: Keys, sizes: Sizes) -> Config:
    return attention_bias(keys, sizes) | {"mlp_bias": biases(keys, "ffn_up", "ffn_down")}


def _in_three_dimensions(keys: Keys, _: Sizes) -> Config:
    """Marks keys as read. No settings: for text alone, positions of vision-language models have one dimension."""
    for key in ("rope.dimension_sections", "n_deepstack_layers"):
        keys.value(key)
    return {}


# Llama, and what is written under its name.


_LLAMA = Architecture("llama", llama(PERMUTED_ATTENTION, MAYBE_BIASED_GATED), _biases)
_MISTRAL = Architecture(
    "mistral", llama(), lambda keys, _: {"sliding_window": keys.whole("attention.sliding_window", 0) or None}
)


def _of_llama(keys: Keys) -> Architecture:
    if keys.has("blk.0.attn_q.bias") or keys.has("blk.0.ffn_up.bias"):
        return _LLAMA
    return _MISTRAL if keys.whole("attention.sliding_window", 0) else _LLAMA


def _ministral_settings(keys: Keys, sizes: Sizes) -> Config:
    """Settings of the scale that grows queries with their position beyond the original context."""
    rules = rope_parameters(keys, sizes.head_dim)
    if rules["rope_type"] != "yarn":
        keys.unsupported("attention.temperature_scale is there without yarn")
    rules["llama_4_scaling_beta"] = keys.number("attention.temperature_scale")
    return {"rope_parameters": rules, "sliding_window": None}


def _of_mistral3(keys: Keys) -> Architecture:
    if keys.number("attention.temperature_scale", 0.0):
        return Architecture("ministral3", llama(), _ministral_settings)
    return _MISTRAL


def granite_settings(keys: Keys, sizes: Sizes) -> Config:
    """Granite's four factors: of attention scores, embeddings, residuals and logits."""
    if not keys.flag("rope.scaling.finetuned", True):
        keys.unsupported("positions are not turned (rope.scaling.finetuned is false)")
    return attention_bias(keys, sizes) | {
        "attention_multiplier": keys.number("attention.scale", sizes.head_dim**-0.5),
        "embedding_multiplier": keys.number("embedding_scale", 1.0),
        "residual_multiplier": keys.number("residual_scale", 1.0),
        "logits_scaling": keys.number("logit_scale"),
    }


def _dense_granite_settings(keys: Keys, sizes: Sizes) -> Config:
    return granite_settings(keys, sizes) | {"mlp_bias": biases(keys, "ffn_gate", "ffn_up", "ffn_down")}


def _smollm3_settings(keys: Keys, sizes: Sizes) -> Config:
    """Settings by which every fourth layer has no rotary positions."""
    return _biases(keys, sizes) | {
        "no_rope_layers": [int((i + 1) % 4 != 0) for i in range(sizes.layers)],
        "no_rope_layer_interval": 4,
        "use_sliding_window": False,
        "sliding_window": None,
        "layer_types": [FULL] * sizes.layers,
    }


# Norms elsewhere than Llama's.


def _olmo_settings(keys: Keys, sizes: Sizes) -> Config:
    if abs(keys.number("attention.layer_norm_epsilon", 1e-5) / 1e-5 - 1) > 1e-5:
        keys.unsupported("attention.layer_norm_epsilon is not 1e-5")
    return attention_bias(keys, sizes) | {"clip_qkv": keys.number("attention.clamp_kqv", 0.0) or None}


_NO_NORM: Names = {name: source for name, source in OUTER.items() if name != "model.norm"}
_OLMO = Architecture("olmo", Layout({**PERMUTED_ATTENTION, **GATED}, _NO_NORM), _olmo_settings, norm=None)
_OLMO2_LAYOUT = Layout({**POST_NORMS, **ATTENTION, **HEAD_NORMS, **GATED}, OUTER, head_norms="joint")
_OLMO2 = Architecture("olmo2", _OLMO2_LAYOUT, attention_bias)


def _olmo3_settings(keys: Keys, sizes: Sizes) -> Config:
    whole = rope_parameters(keys, sizes.head_dim)
    local = keys.base("rope.freq_base_swa", whole["rope_theta"])
    return attention_bias(keys, sizes) | {
        "sliding_window": keys.whole("attention.sliding_window"),
        "layer_types": layer_types(keys, sizes.layers, 4),
        "rope_parameters": {FULL: whole, SLIDING: {"rope_type": "default", "rope_theta": local}},
    }


def _of_olmo2(keys: Keys) -> Architecture:
    windowed = keys.whole("attention.sliding_window", 0)
    return Architecture("olmo3", _OLMO2_LAYOUT, _olmo3_settings) if windowed else _OLMO2


def _exaone4_settings(keys: Keys, sizes: Sizes) -> Config:
    """Settings of windows, for files that list them and for the model of 64 layers, which always has them."""
    window = keys.whole("attention.sliding_window", 4096 if sizes.layers == 64 else 0)
    listed = keys.value("attention.sliding_window_pattern") is not None
    if window and sizes.layers != 64 and not listed:
        keys.unsupported("attention.sliding_window is there, and not in which layers")
    return {
        "sliding_window": window or None,
        "sliding_window_pattern": 4 if window else 0,
        "layer_types": layer_types(keys, sizes.layers, 4) if window else [FULL] * sizes.layers,
    }


_GLM4 = Architecture(
    "glm4",
    Layout(
        {
            "input_layernorm": "attn_norm",
            "post_self_attn_layernorm": "post_attention_norm",
            "post_attention_layernorm": "ffn_norm",
            "post_mlp_layernorm": "post_ffw_norm",
            **MAYBE_BIASED_ATTENTION,
            "self_attn.o_proj": "attn_output",
            "mlp.gate_up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
        },
        OUTER,
        up_is_fused=True,
    ),
    lambda keys, _: {"attention_bias": biases(keys, "attn_q", "attn_k", "attn_v")},
    partial=True,
)


# Gemma's.


_GEMMA_OUTER: Names = {**OUTER, **shifted({"model.norm": "output_norm"})}
_GEMMA_LAYER: Names = {**shifted(SANDWICH_NORMS), **ATTENTION, **GATED}


def _gemma2_settings(keys: Keys, sizes: Sizes) -> Config:
    return {
        # Only the largest, which has 46 layers, scales by another number than its heads have.
        "query_pre_attn_scalar": sizes.hidden // sizes.heads if sizes.layers == 46 else sizes.head_dim,
        "sliding_window": keys.whole("attention.sliding_window", 4096),
        "layer_types": layer_types(keys, sizes.layers, 2),
        "attn_logit_softcapping": keys.number("attn_logit_softcapping", 50.0) or None,
        "final_logit_softcapping": keys.number("final_logit_softcapping", 30.0) or None,
    }


def _gemma3_settings(keys: Keys, sizes: Sizes) -> Config:
    window = keys.whole("attention.sliding_window", 0)
    local = keys.base("rope.freq_base_swa", 10000.0)
    return {
        # Only the largest, which has 62 layers, scales by another number than its heads have.
        "query_pre_attn_scalar": sizes.hidden // sizes.heads if sizes.layers == 62 else sizes.head_dim,
        "sliding_window": window or None,
        "layer_types": layer_types(keys, sizes.layers, 6) if window else [FULL] * sizes.layers,
        "rope_parameters": {
            FULL: rope_parameters(keys, sizes.head_dim),
            SLIDING: {"rope_type": "default", "rope_theta": local},  # turned by positions as they are
        },
        "final_logit_softcapping": keys.number("final_logit_softcapping", 0.0) or None,
        "attn_logit_softcapping": None,
    }


# Others.


def _phi3_settings(keys: Keys, sizes: Sizes) -> Config:
    original = keys.whole("rope.scaling.original_context_length", keys.whole("context_length"))
    return {
        "original_max_position_embeddings": original,
        "sliding_window": keys.whole("attention.sliding_window", 0) or None,
    }


_PHI3 = Architecture(
    "phi3",
    Layout(
        {
            **NORMS,
            "self_attn.qkv_proj": "attn_qkv",
            "self_attn.o_proj": "attn_output",
            "mlp.gate_up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
        },
        OUTER,
        up_is_fused=True,
    ),
    _phi3_settings,
    partial=True,
)
_SEED_NORMS: Names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm"}


def _seed_settings(keys: Keys, _: Sizes) -> Config:
    return {
        "attention_bias": biases(keys, "attn_q", "attn_k", "attn_v"),
        "attention_out_bias": biases(keys, "attn_output"),
        "mlp_bias": biases(keys, "ffn_gate", "ffn_up", "ffn_down"),
    }


def _ernie_settings(keys: Keys, _: Sizes) -> Config:
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    return {"use_bias": biases(keys, *names)}


_APERTUS = Architecture(
    "apertus",
    Layout(
        {
            "attention_layernorm": "attn_norm",
            "feedforward_layernorm": "ffn_norm",
            **MAYBE_BIASED_ATTENTION,
            **HEAD_NORMS,
            **_UNGATED,
        },
        OUTER,
    ),
    attention_bias,
    more=activations,
)
_HUNYUAN_NORMS: Names = {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"}

DENSE: dict[str, Choice] = {
    "llama": _of_llama,
    "mistral3": _of_mistral3,
    "qwen2": always(Architecture("qwen2", llama(QWEN2_ATTENTION))),
    "qwen2vl": always(Architecture("qwen2", llama(QWEN2_ATTENTION), _in_three_dimensions)),
    "qwen3": always(Architecture("qwen3", llama({**ATTENTION, **HEAD_NORMS}))),
    "qwen3vl": always(Architecture("qwen3", llama({**ATTENTION, **HEAD_NORMS}), _in_three_dimensions)),
    "smollm3": always(Architecture("smollm3", llama(PERMUTED_ATTENTION, MAYBE_BIASED_GATED), _smollm3_settings)),
    "granite": always(Architecture("granite", llama(PERMUTED_ATTENTION, MAYBE_BIASED_GATED), _dense_granite_settings)),
    "arcee": always(Architecture("arcee", llama(PERMUTED_ATTENTION, with_maybe_biases(_UNGATED)), _ungated_biases)),
    "apertus": always(_APERTUS),
    "olmo": always(_OLMO),
    "olmo2": _of_olmo2,
    "exaone4": always(Architecture("exaone4", llama({**ATTENTION, **HEAD_NORMS}, norms=POST_NORMS), _exaone4_settings)),
    "glm4": always(_GLM4),
    "gemma": always(Architecture("gemma", Layout({**shifted(NORMS), **ATTENTION, **GATED}, _GEMMA_OUTER))),
    "gemma2": always(Architecture("gemma2", Layout(_GEMMA_LAYER, _GEMMA_OUTER), _gemma2_settings)),
    "gemma3": always(
        Architecture("gemma3_text", Layout({**_GEMMA_LAYER, **shifted(HEAD_NORMS)}, _GEMMA_OUTER), _gemma3_settings)
    ),
    "phi3": always(_PHI3),
    "seed_oss": always(
        Architecture("seed_oss", llama(MAYBE_BIASED_ATTENTION, MAYBE_BIASED_GATED, _SEED_NORMS), _seed_settings)
    ),
    "ernie4_5": always(Architecture("ernie4_5", llama(MAYBE_BIASED_ATTENTION, MAYBE_BIASED_GATED), _ernie_settings)),
    "hunyuan-dense": always(
        Architecture("hunyuan_v1_dense", llama({**MAYBE_BIASED_ATTENTION, **_HUNYUAN_NORMS}), attention_bias)
    ),
}
"""Architectures by the name that llama.cpp gives them."""
