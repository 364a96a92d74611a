"""Every architecture of GGUF files: which tiny model of transformers is written, and what becomes of it.

One more is a row of `ARCHITECTURES`.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tests.runtime.gguf.settings import (
    EVERY_FOURTH,
    EXPERTS,
    GEMMA_ROPE,
    GRANITE,
    LAYER_NORM,
    LAYERS4,
    LLAMA3,
    LOCAL_EXPERTS,
    LONG,
    OLD_PARTIAL,
    OLD_ROPE,
    OLMO3_ROPE,
    PARTIAL,
    ROPE,
    YARN,
)
from tests.runtime.gguf.transforms import (
    across,
    as_it_is,
    by_turns,
    falcon_groups,
    granite_experts,
    permuted,
    plus_one,
    queries_keys_values,
    shared_gate_is_a_vector,
    stacked,
)
from tests.runtime.gguf.written import Written, named, turned, windows

GRANITE_KEYS = {
    "embedding_scale": named("embedding_multiplier"),
    "residual_scale": named("residual_multiplier"),
    "attention.scale": named("attention_multiplier"),
    "logit_scale": named("logits_scaling"),
    "rope.dimension_count": 16,
}
ARCHITECTURES: dict[str, Written] = {
    "llama": Written("llama", {"model_type": "llama"}, permuted),
    "llama-tied": Written("llama", {"model_type": "llama", "tie_word_embeddings": True}, permuted),
    "llama-biased": Written("llama", {"model_type": "llama", "attention_bias": True, "mlp_bias": True}, permuted),
    "llama-llama3": Written("llama", {"model_type": "llama", "rope_parameters": LLAMA3}, permuted),
    "llama-yarn": Written("llama", {"model_type": "llama", "rope_parameters": YARN}, permuted),
    "mistral-windows": Written(
        "llama",
        {"model_type": "mistral", "sliding_window": 8},
        permuted,
        {"attention.sliding_window": named("sliding_window")},
    ),
    "mistral3": Written("mistral3", {"model_type": "mistral", "sliding_window": None}, permuted),
    "ministral3": Written(
        "mistral3",
        {
            "model_type": "ministral3",
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.1},
        },
        permuted,
        {
            "rope.scaling.yarn_log_multiplier": lambda config: config.rope_parameters["mscale_all_dim"],
            "attention.temperature_scale": lambda config: config.rope_parameters["llama_4_scaling_beta"],
        },
    ),
    "qwen2": Written("qwen2", {"model_type": "qwen2"}),
    "qwen2vl": Written("qwen2vl", {"model_type": "qwen2"}, keys={"rope.dimension_sections": [4, 2, 2, 0]}),
    "qwen3vl": Written(
        "qwen3vl", {"model_type": "qwen3"}, keys={"rope.dimension_sections": [4, 2, 2, 0], "n_deepstack_layers": 3}
    ),
    "qwen3": Written("qwen3", {"model_type": "qwen3", "tie_word_embeddings": True}),
    "qwen3-yarn": Written("qwen3", {"model_type": "qwen3", "rope_parameters": YARN}),
    "smollm3": Written("smollm3", {"model_type": "smollm3", **LAYERS4}, permuted),
    "granite": Written("granite", {"model_type": "granite", **GRANITE}, permuted, GRANITE_KEYS),
    "arcee": Written("arcee", {"model_type": "arcee"}, permuted),
    "olmo": Written(
        "olmo",
        {"model_type": "olmo", "clip_qkv": 0.5},
        permuted,
        {**LAYER_NORM, "attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": named("clip_qkv")},
    ),
    "olmo2": Written("olmo2", {"model_type": "olmo2"}),
    "olmo3": Written(
        "olmo2",
        {
            "model_type": "olmo3",
            **LAYERS4,
            "sliding_window": 8,
            "layer_types": EVERY_FOURTH,
            "rope_parameters": OLMO3_ROPE,
        },
        as_it_is,
        {"attention.sliding_window": named("sliding_window"), "attention.sliding_window_pattern": windows},
    ),
    "exaone4": Written(
        "exaone4", {"model_type": "exaone4", "sliding_window": None, "layer_types": ["full_attention"] * 2}
    ),
    "exaone4-windows": Written(
        "exaone4",
        {"model_type": "exaone4", **LAYERS4, "sliding_window": 8, "layer_types": EVERY_FOURTH},
        as_it_is,
        {"attention.sliding_window": named("sliding_window"), "attention.sliding_window_pattern": windows},
    ),
    "glm4": Written(
        "glm4", {"model_type": "glm4", **PARTIAL, "attention_bias": True}, keys={"rope.dimension_count": turned}
    ),
    "gemma": Written("gemma", {"model_type": "gemma", "rope_parameters": OLD_ROPE}, plus_one, {"rope.freq_base": None}),
    "gemma2": Written(
        "gemma2",
        {
            "model_type": "gemma2",
            "query_pre_attn_scalar": 16,
            "sliding_window": 8,
            "attn_logit_softcapping": 2.0,
            "rope_parameters": OLD_ROPE,
        },
        plus_one,
        {
            "attention.sliding_window": named("sliding_window"),
            "attn_logit_softcapping": named("attn_logit_softcapping"),
            "final_logit_softcapping": named("final_logit_softcapping"),
            "rope.freq_base": None,
        },
    ),
    "gemma3": Written(
        "gemma3",
        {
            "model_type": "gemma3_text",
            "num_hidden_layers": 7,
            "query_pre_attn_scalar": 16,
            "sliding_window": 8,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
            "rope_parameters": GEMMA_ROPE,
        },
        plus_one,
        {"attention.sliding_window": named("sliding_window")},
    ),
    "phi3": Written(
        "phi3",
        {"model_type": "phi3", "sliding_window": 8, "rope_parameters": {**ROPE, "partial_rotary_factor": 1.0}},
        keys={
            "attention.sliding_window": named("sliding_window"),
            "rope.dimension_count": turned,
            "rope.scaling.original_context_length": named("original_max_position_embeddings"),
        },
    ),
    "phi3-long": Written(
        "phi3",
        {"model_type": "phi3", "rope_parameters": LONG, "original_max_position_embeddings": 32},
        keys={
            "rope.dimension_count": turned,
            "rope.scaling.original_context_length": 32,
            "rope.scaling.attn_factor": float(np.sqrt(1 + np.log(4) / np.log(32))),
        },
    ),
    "apertus": Written("apertus", {"model_type": "apertus", "rope_parameters": LLAMA3}),
    "seed_oss": Written("seed_oss", {"model_type": "seed_oss"}),
    "ernie4_5": Written("ernie4_5", {"model_type": "ernie4_5", "use_bias": False}),
    "hunyuan-dense": Written("hunyuan-dense", {"model_type": "hunyuan_v1_dense", "rope_parameters": ROPE}),
    "command-r": Written(
        "command-r",
        {"model_type": "cohere", "logit_scale": 0.25},
        keys={**LAYER_NORM, "logit_scale": named("logit_scale"), "rope.scaling.type": "none"},
    ),
    "command-r-plus": Written(
        "command-r",
        {"model_type": "cohere", "logit_scale": 0.25, "use_qk_norm": True},
        keys={**LAYER_NORM, "logit_scale": named("logit_scale"), "rope.scaling.type": "none"},
    ),
    "cohere2": Written(
        "cohere2",
        {"model_type": "cohere2", **LAYERS4, "logit_scale": 0.25, "sliding_window": 8, "layer_types": EVERY_FOURTH},
        keys={
            **LAYER_NORM,
            "logit_scale": named("logit_scale"),
            "attention.sliding_window": named("sliding_window"),
            "rope.dimension_count": 16,
            "rope.scaling.type": "none",
        },
    ),
    "stablelm": Written(
        "stablelm",
        {"model_type": "stablelm", **OLD_PARTIAL, "use_qkv_bias": True},
        keys={
            **LAYER_NORM,
            "rope.dimension_count": turned,
            "rope.freq_base": None,
            "use_parallel_residual": named("use_parallel_residual"),
        },
        head_dim=False,
    ),
    "stablelm-12b": Written(
        "stablelm",
        {"model_type": "stablelm", **OLD_PARTIAL, "qk_layernorm": True, "use_parallel_residual": True},
        keys={
            **LAYER_NORM,
            "rope.dimension_count": turned,
            "rope.freq_base": None,
            "use_parallel_residual": named("use_parallel_residual"),
        },
        head_dim=False,
    ),
    "starcoder2": Written("starcoder2", {"model_type": "starcoder2"}, keys=LAYER_NORM, head_dim=False),
    "nemotron": Written(
        "nemotron",
        {"model_type": "nemotron", **PARTIAL},
        plus_one,
        {"attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": turned, "rope.scaling.type": "none"},
    ),
    "phi2": Written(
        "phi2",
        {"model_type": "phi", **OLD_PARTIAL, "intermediate_size": 256, "num_key_value_heads": 4},
        keys={**LAYER_NORM, "rope.dimension_count": turned, "rope.freq_base": None},
        head_dim=False,
    ),
    "gpt2": Written(
        "gpt2",
        {
            "model_type": "gpt2",
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 128,
            "rope_parameters": None,
            "num_key_value_heads": 4,
            "intermediate_size": 256,
        },
        across,
        {"context_length": named("n_positions"), "attention.head_count_kv": None},
        head_dim=False,
    ),
    "gptneox": Written(
        "gptneox",
        {
            "model_type": "gpt_neox",
            "num_key_value_heads": 4,
            "rope_parameters": {**OLD_ROPE, "partial_rotary_factor": 0.5},
        },
        queries_keys_values,
        {
            "rope.dimension_count": turned,
            "use_parallel_residual": named("use_parallel_residual"),
            "attention.head_count_kv": None,
            "rope.freq_base": None,
        },
        head_dim=False,
    ),
    "falcon": Written(
        "falcon",
        {
            "model_type": "falcon",
            "num_kv_heads": 1,
            "num_key_value_heads": 1,
            "intermediate_size": 256,
            "rope_parameters": OLD_ROPE,
        },
        falcon_groups,
        {"attention.head_count_kv": 1, "rope.freq_base": None, "context_length": 2048},
        head_dim=False,
        unsaid={"max_position_embeddings": 2048},
    ),
    "falcon-40b": Written(
        "falcon",
        {
            "model_type": "falcon",
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 2,
            "intermediate_size": 256,
            "rope_parameters": OLD_ROPE,
        },
        falcon_groups,
        {"attention.head_count_kv": 2, "rope.freq_base": None, "context_length": 2048},
        head_dim=False,
        unsaid={"max_position_embeddings": 2048},
    ),
    "mixtral": Written("llama", {"model_type": "mixtral", **LOCAL_EXPERTS}, partial(stacked, then=permuted)),
    "qwen3moe": Written(
        "qwen3moe",
        {"model_type": "qwen3_moe", **EXPERTS, "moe_intermediate_size": 32, "norm_topk_prob": True},
        stacked,
        {"expert_feed_forward_length": named("moe_intermediate_size")},
    ),
    "qwen2moe": Written(
        "qwen2moe",
        {
            "model_type": "qwen2_moe",
            **EXPERTS,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
        },
        shared_gate_is_a_vector,
        {
            "expert_feed_forward_length": named("moe_intermediate_size"),
            "expert_shared_feed_forward_length": named("shared_expert_intermediate_size"),
        },
        head_dim=False,
    ),
    "olmoe": Written("olmoe", {"model_type": "olmoe", **EXPERTS}, stacked, head_dim=False),
    "granitemoe": Written(
        "granitemoe",
        {"model_type": "granitemoe", **LOCAL_EXPERTS, **GRANITE},
        granite_experts,
        GRANITE_KEYS,
        head_dim=False,
    ),
    "gpt-oss": Written(
        "gpt-oss",
        {
            "model_type": "gpt_oss",
            **LOCAL_EXPERTS,
            "sliding_window": 8,
            "rope_parameters": {**YARN, "truncate": False},
        },
        by_turns,
        {
            "attention.sliding_window": named("sliding_window"),
            "expert_feed_forward_length": named("intermediate_size"),
        },
    ),
}
"""By what tests call them."""
