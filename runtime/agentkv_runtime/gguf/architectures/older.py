"""Architectures with names from before Llama, or whose norms subtract the mean."""

from __future__ import annotations

from typing import Any

import numpy as np

from agentkv_runtime.gguf.architectures.architecture import Architecture
from agentkv_runtime.gguf.architectures.dense import attention_bias
from agentkv_runtime.gguf.architectures.families import (
    ATTENTION,
    GATED,
    HEAD_NORMS,
    MAYBE_BIASED_ATTENTION,
    NORMS,
    OUTER,
    Choice,
    always,
    biased,
    biases,
    maybe_biased,
    with_biases,
    with_maybe_biases,
)
from agentkv_runtime.gguf.architectures.layout import Layout, Names, Sizes, Source
from agentkv_runtime.gguf.architectures.windows import layer_types
from agentkv_runtime.gguf.keys import Keys
from agentkv_runtime.gguf.weights import Order, Parameter

__all__ = ["OLDER"]

Config = dict[str, Any]

_BIASED_NORM: Names = {"model.norm": biased("output_norm")}


# Cohere's: one norm for attention and feed-forward.


def _cohere_settings(keys: Keys, sizes: Sizes) -> Config:
    return {
        "logit_scale": keys.number("logit_scale"),
        "use_qk_norm": keys.has("blk.0.attn_q_norm.weight"),
        "attention_bias": False,
    }


def _cohere2_settings(keys: Keys, sizes: Sizes) -> Config:
    return {
        "logit_scale": keys.number("logit_scale"),
        "sliding_window": keys.whole("attention.sliding_window"),
        "layer_types": layer_types(keys, sizes.layers, 4),
        "attention_bias": False,
    }


_COHERE_LAYER: Names = {"input_layernorm": "attn_norm", **ATTENTION, **GATED}
_MAYBE_HEAD_NORMS: Names = {name: Source((str(part),), weight=None) for name, part in HEAD_NORMS.items()}
_COHERE = Layout({**_COHERE_LAYER, **_MAYBE_HEAD_NORMS}, OUTER, head_norms="each")


# StableLM.


def _stablelm_settings(keys: Keys, _: Sizes) -> Config:
    keys.value("use_parallel_residual")  # llama.cpp goes by the norm, too
    return {
        "use_parallel_residual": not keys.has("blk.0.ffn_norm.weight"),
        "use_qkv_bias": biases(keys, "attn_q", "attn_k", "attn_v"),
        "qk_layernorm": keys.has("blk.0.attn_q_norm.weight"),
    }


def _stablelm_norms(keys: Keys, sizes: Sizes) -> dict[str, Parameter]:
    """Parameters of the norm of each head, which files store as rows of one tensor."""
    norms: dict[str, Parameter] = {}
    for name, heads in (("q", sizes.heads), ("k", sizes.kv_heads)):
        for i in range(sizes.layers):
            tensor = keys.file.tensors.get(f"blk.{i}.attn_{name}_norm.weight")
            if tensor is None or tensor.shape != (heads, sizes.head_dim):
                continue
            for head in range(heads):
                row = Parameter((tensor,), order=np.array([head]), shape=(sizes.head_dim,))
                norms[f"model.layers.{i}.self_attn.{name}_layernorm.norms.{head}.weight"] = row
    return norms


_STABLELM = Architecture(
    "stablelm",
    Layout(
        {
            "input_layernorm": biased("attn_norm"),
            "post_attention_layernorm": Source(("ffn_norm",), weight=None, bias=None),
            **MAYBE_BIASED_ATTENTION,
            "self_attn.o_proj": "attn_output",
            **GATED,
        },
        {**OUTER, **_BIASED_NORM},
        head_norms="each",
    ),
    _stablelm_settings,
    norm="layer_norm_eps",
    partial=True,
    more=_stablelm_norms,
)


# StarCoder, Nemotron, Phi.


def _starcoder2_settings(keys: Keys, _: Sizes) -> Config:
    used = biases(keys, "attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")
    return {"use_bias": used, "sliding_window": None}


def _nemotron_settings(keys: Keys, sizes: Sizes) -> Config:
    return attention_bias(keys, sizes) | {"mlp_bias": biases(keys, "ffn_up", "ffn_down")}


def _plus_one(name: str) -> Source:
    return Source((name,), bias=True, added=-1.0)


_NEMOTRON = Layout(
    {
        "input_layernorm": _plus_one("attn_norm"),
        "post_attention_layernorm": _plus_one("ffn_norm"),
        **MAYBE_BIASED_ATTENTION,
        "mlp.up_proj": maybe_biased("ffn_up"),
        "mlp.down_proj": maybe_biased("ffn_down"),
    },
    {**OUTER, "model.norm": _plus_one("output_norm")},
)
_PHI = Layout(
    {
        "input_layernorm": biased("attn_norm"),
        "self_attn.q_proj": biased("attn_q"),
        "self_attn.k_proj": biased("attn_k"),
        "self_attn.v_proj": biased("attn_v"),
        "self_attn.dense": biased("attn_output"),
        "mlp.fc1": biased("ffn_up"),
        "mlp.fc2": biased("ffn_down"),
    },
    {"model.embed_tokens": "token_embd", "model.final_layernorm": biased("output_norm"), "lm_head": biased("output")},
)


# GPT-2 and GPT-NeoX.


def _gpt2_settings(_: Keys, sizes: Sizes) -> Config:
    return {
        "n_embd": sizes.hidden,
        "n_layer": sizes.layers,
        "n_head": sizes.heads,
        "n_inner": None if sizes.intermediate == 4 * sizes.hidden else sizes.intermediate,
    }


def _across(name: str) -> Source:
    return Source((name,), bias=True, transposed=True)


_GPT2 = Layout(
    {
        "ln_1": biased("attn_norm"),
        "attn.c_attn": _across("attn_qkv"),
        "attn.c_proj": _across("attn_output"),
        "ln_2": biased("ffn_norm"),
        "mlp.c_fc": _across("ffn_up"),
        "mlp.c_proj": _across("ffn_down"),
    },
    {
        "transformer.wte": "token_embd",
        "transformer.wpe": "position_embd",
        "transformer.ln_f": biased("output_norm"),
        "lm_head": Source(("output",), weight=None),
    },
    prefix="transformer.h",
)


def _by_heads(sizes: Sizes) -> Order:
    """Row order of GPT-NeoX, with each head's query, key and value together; files have queries, then keys, values."""
    rows = np.arange(3 * sizes.heads * sizes.head_dim).reshape(3, sizes.heads, -1)
    return rows.swapaxes(0, 1).reshape(-1)


def _gptneox_settings(keys: Keys, _: Sizes) -> Config:
    return {
        "use_parallel_residual": keys.flag("use_parallel_residual", True),
        "attention_bias": biases(keys, "attn_qkv", "attn_output"),
    }


_GPTNEOX = Layout(
    {
        "input_layernorm": biased("attn_norm"),
        "post_attention_layernorm": biased("ffn_norm"),
        "attention.query_key_value": maybe_biased("attn_qkv", order=_by_heads),
        "attention.dense": maybe_biased("attn_output"),
        "mlp.dense_h_to_4h": biased("ffn_up"),
        "mlp.dense_4h_to_h": biased("ffn_down"),
    },
    {
        "gpt_neox.embed_in": "token_embd",
        "gpt_neox.final_layer_norm": biased("output_norm"),
        "lm_head": Source(("output",), weight=None),
    },
    prefix="gpt_neox.layers",
)


# Falcon.


def _by_groups(sizes: Sizes) -> Order:
    """Row order of Falcon, with each group's queries, key and value together; files have queries, then keys, values."""
    rows = np.arange((sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim).reshape(-1, sizes.head_dim)
    queries, keys, values = np.split(rows, [sizes.heads, sizes.heads + sizes.kv_heads])
    groups = [each.reshape(sizes.kv_heads, -1) for each in (queries, keys, values)]
    return np.concatenate(groups, 1).reshape(-1)


def _falcon(norms: Names) -> Layout:
    return Layout(
        {
            **with_biases(norms),
            "self_attention.query_key_value": Source(("attn_qkv",), order=_by_groups),
            "self_attention.dense": "attn_output",
            "mlp.dense_h_to_4h": "ffn_up",
            "mlp.dense_4h_to_h": "ffn_down",
        },
        {
            "transformer.word_embeddings": "token_embd",
            "transformer.ln_f": biased("output_norm"),
            "lm_head": Source(("output",), weight=None),
        },
        prefix="transformer.h",
    )


def _falcon_settings(keys: Keys, sizes: Sizes) -> Config:
    grouped = sizes.kv_heads > 1
    return {
        "num_kv_heads": sizes.kv_heads,
        "new_decoder_architecture": grouped,
        "num_ln_in_parallel_attn": (2 if keys.has("blk.0.attn_norm_2.weight") else 1) if grouped else None,
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
        "alibi": False,
        "ffn_hidden_size": sizes.intermediate,
    }


def _of_falcon(keys: Keys) -> Architecture:
    two = keys.has("blk.0.attn_norm_2.weight")
    norms = {"ln_attn": "attn_norm_2", "ln_mlp": "attn_norm"} if two else {"input_layernorm": "attn_norm"}
    layout = _falcon(norms)
    return Architecture("falcon", layout, _falcon_settings, norm="layer_norm_epsilon", without=("head_dim",))


OLDER: dict[str, Choice] = {
    "command-r": always(Architecture("cohere", _COHERE, _cohere_settings, norm="layer_norm_eps")),
    "cohere2": always(Architecture("cohere2", Layout(_COHERE_LAYER, OUTER), _cohere2_settings, norm="layer_norm_eps")),
    "stablelm": always(_STABLELM),
    "starcoder2": always(
        Architecture(
            "starcoder2",
            Layout(
                {
                    **with_biases(NORMS),
                    **MAYBE_BIASED_ATTENTION,
                    **with_maybe_biases({"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}),
                },
                {**OUTER, **_BIASED_NORM},
            ),
            _starcoder2_settings,
            norm="norm_epsilon",
        )
    ),
    "nemotron": always(Architecture("nemotron", _NEMOTRON, _nemotron_settings, norm="norm_eps", partial=True)),
    "phi2": always(Architecture("phi", _PHI, norm="layer_norm_eps", partial=True)),
    "gpt2": always(Architecture("gpt2", _GPT2, _gpt2_settings, norm="layer_norm_epsilon", rotary=False)),
    "gptneox": always(Architecture("gpt_neox", _GPTNEOX, _gptneox_settings, norm="layer_norm_eps", partial=True)),
    "falcon": _of_falcon,
}
"""Architectures by llama.cpp's names."""
