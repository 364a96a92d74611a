"""Architectures whose layers choose among experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from agentkv_runtime.gguf.architectures.architecture import Architecture
from agentkv_runtime.gguf.architectures.dense import DENSE, QWEN2_ATTENTION, granite_settings
from agentkv_runtime.gguf.architectures.families import (
    ATTENTION,
    HEAD_NORMS,
    NORMS,
    OUTER,
    PERMUTED_ATTENTION,
    Choice,
    always,
    biased,
    experts_of,
    llama,
    with_biases,
)
from agentkv_runtime.gguf.architectures.layout import Layout, Names, Sizes, Source
from agentkv_runtime.gguf.architectures.windows import layer_types
from agentkv_runtime.gguf.keys import Keys
from agentkv_runtime.gguf.rope import rope_parameters
from agentkv_runtime.gguf.weights import Order

__all__ = ["MIXTURES"]

Config = dict[str, Any]


def _experts(keys: Keys, sizes: Sizes) -> Config:
    return {"num_experts": sizes.experts, "num_experts_per_tok": keys.whole("expert_used_count")}


def _local_experts(keys: Keys, sizes: Sizes) -> Config:
    return {
        "num_local_experts": sizes.experts,
        "num_experts_per_tok": keys.whole("expert_used_count"),
        "intermediate_size": sizes.expert_intermediate,
    }


# Whether the chosen experts' shares add up to one is no key of these files: it is a fact of each architecture.


def _qwen3_settings(keys: Keys, sizes: Sizes) -> Config:
    return _experts(keys, sizes) | {
        "moe_intermediate_size": sizes.expert_intermediate,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _qwen2_settings(keys: Keys, sizes: Sizes) -> Config:
    return _qwen3_settings(keys, sizes) | {
        "norm_topk_prob": False,
        "shared_expert_intermediate_size": sizes.shared_intermediate,
    }


_SHARED_EXPERT: Names = {
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": Source(("ffn_gate_inp_shexp",), shape=lambda sizes: (1, sizes.hidden)),
}


def _olmoe_settings(keys: Keys, sizes: Sizes) -> Config:
    return _experts(keys, sizes) | {
        "intermediate_size": sizes.expert_intermediate,
        "norm_topk_prob": False,
        "clip_qkv": keys.number("attention.clamp_kqv", 0.0) or None,
    }


_MIXTRAL = Architecture("mixtral", llama(PERMUTED_ATTENTION, experts_of()), _local_experts)


def _of_llama(keys: Keys) -> Architecture:
    return _MIXTRAL if keys.whole("expert_count", 0) else DENSE["llama"](keys)


def _granite_settings(keys: Keys, sizes: Sizes) -> Config:
    return granite_settings(keys, sizes) | _local_experts(keys, sizes)


# gpt-oss.


def _by_turns(sizes: Sizes) -> Order:
    """Row order that alternates between rows of the gate and rows of up."""
    return np.arange(2 * sizes.expert_intermediate).reshape(2, -1).swapaxes(0, 1).reshape(-1)


_GPT_OSS_LAYER: Names = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    **with_biases(ATTENTION),
    "self_attn.sinks": Source(("attn_sinks",), bare=True),
    "mlp.router": biased("ffn_gate_inp"),
    "mlp.experts.gate_up_proj": Source(
        ("ffn_gate_exps", "ffn_up_exps"), bias=True, order=_by_turns, transposed=True, bare=True
    ),
    "mlp.experts.down_proj": Source(("ffn_down_exps",), bias=True, transposed=True, bare=True),
}


def _gpt_oss_settings(keys: Keys, sizes: Sizes) -> Config:
    rules = rope_parameters(keys, sizes.head_dim)
    if rules["rope_type"] == "yarn":
        rules["truncate"] = False
    return _local_experts(keys, sizes) | {
        "sliding_window": keys.whole("attention.sliding_window"),
        "layer_types": layer_types(keys, sizes.layers, 2),
        "rope_parameters": rules,
        "attention_bias": True,
    }


MIXTURES: dict[str, Choice] = {
    "llama": _of_llama,
    "qwen3moe": always(Architecture("qwen3_moe", llama({**ATTENTION, **HEAD_NORMS}, experts_of()), _qwen3_settings)),
    "qwen2moe": always(
        Architecture("qwen2_moe", llama(QWEN2_ATTENTION, {**experts_of(), **_SHARED_EXPERT}), _qwen2_settings)
    ),
    "olmoe": always(
        Architecture(
            "olmoe",
            Layout({**NORMS, **ATTENTION, **HEAD_NORMS, **experts_of()}, OUTER, head_norms="joint"),
            _olmoe_settings,
        )
    ),
    "granitemoe": always(
        Architecture(
            "granitemoe", llama(PERMUTED_ATTENTION, experts_of("block_sparse_moe", "router")), _granite_settings
        )
    ),
    "gpt-oss": always(Architecture("gpt_oss", Layout(_GPT_OSS_LAYER, OUTER), _gpt_oss_settings)),
}
"""Architectures by llama.cpp's names."""
