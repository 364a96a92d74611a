"""Tiny configurations of every causal language model that transformers knows, made from its own default ones.

Sizes shrink, every length that a configuration names falls below the history that a test feeds, and of layers that
differ (in their attention, their feed-forward, their rope) one of each kind is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

__all__ = ["CAUSAL_TYPES", "HISTORY", "UNBUILDABLE", "VARIANTS", "tiny_config"]

CAUSAL_TYPES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
HISTORY = 96
"""Rows that a test feeds where the model takes as many; above every length below."""

_NAMES: dict[int, str] = {
    0: "pad_token_id eos_token_id bos_token_id decoder_start_token_id sep_token_id cls_token_id",
    1: "n_groups mamba_n_groups mamba_ngroups first_k_dense_replace num_dense_layers expert_layer_offset",
    2: """num_hidden_layers n_layer n_layers num_layers decoder_layers num_decoder_layers encoder_layers
        num_encoder_layers num_blocks num_layers_per_stack depth num_key_value_heads swa_num_key_value_heads
        num_kv_heads num_query_groups index_n_heads num_experts_per_tok moe_topk moe_k num_experts_per_token
        decoder_sparse_step expert_layer_period attn_layer_period linear_num_key_heads linear_num_value_heads
        linear_num_heads n_mamba_heads n_group topk_group num_expert_group patch_size layer_group_size o_groups
        index_topk_blocks num_quantizers""",
    4: """num_attention_heads n_head n_heads num_heads attention_heads decoder_attention_heads encoder_attention_heads
        num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads num_experts n_routed_experts
        num_local_experts moe_num_experts mamba_n_heads mamba_num_heads zero_expert_num altup_num_inputs
        index_block_size laurel_rank adapter_rank gated_norm_rank mamba_dt_rank time_step_rank hc_lowrank""",
    8: """sliding_window sliding_window_size window_size attention_window_size attention_chunk_size floor_scale
        log_scaling_n_floor local_attention block_size local_attention_window_len
        local_attn_chunk_length lsh_attn_chunk_length position_bias_max_distance position_bias_num_buckets
        relative_max_distance num_buckets""",
    16: """head_dim global_head_dim swa_head_dim kv_channels attention_head_dim dim_head d_head qk_nope_head_dim
        qk_rope_head_dim v_head_dim qk_head_dim linear_key_head_dim d_rel linear_value_head_dim linear_head_dim
        mamba_d_state state_size ssm_state_size rotary_dim mamba_d_head mamba_head_dim mamba_headdim
        attention_head_size query_pre_attn_scalar hidden_size_per_layer_input mamba_chunk_size chunk_size rel_extent""",
    32: """moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size
        shared_experts_intermediate_size moe_shared_expert_intermediate_size expert_ffn_hidden_size
        original_max_position_embeddings q_lora_rank kv_lora_rank o_lora_rank index_head_dim router_hidden_size
        max_source_positions image_size""",
    64: """hidden_size d_model n_embd dim_model_base embedding_size word_embed_proj_dim embedding_dim
        attention_hidden_size lru_width emb_dim input_embedding_size mamba_d_ssm ple_embed_dim
        output_embedding_size""",
    96: """intermediate_size ffn_dim n_inner decoder_ffn_dim encoder_ffn_dim dim_ff dff d_inner ffn_hidden_size
        intermediate_size_mlp feed_forward_size dense_intermediate_size max_position_embeddings n_positions n_ctx
        max_seq_len model_max_length max_target_positions context_length""",
    128: "vocab_size decoder_vocab_size unpadded_vocab_size vocab_size_per_layer_input",
    1000: "ngram_vocab_size_base",
}
_SMALL: dict[str, Any] = {name: value for value, names in _NAMES.items() for name in names.split()}
_NEEDED = {"head_dim", "n_routed_experts", "num_experts", "num_key_value_heads", "qk_head_dim"}
_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_MOST_LAYERS = 4


def _rope(rope_type: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 1e4, **parameters}}


_LONG = _rope(
    "longrope",
    short_factor=[1.0 + i / 8 for i in range(8)],
    long_factor=[4.0 + i for i in range(8)],
    original_max_position_embeddings=32,
)
_YARN = _rope("yarn", factor=3.0, original_max_position_embeddings=32)
_LLAMA3 = _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
_DYNAMIC = {**_rope("dynamic", factor=2.0), "max_position_embeddings": 48}


_SLIDING = {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}
_SLIDING_ON_DEMAND = (
    *("doge", "minimax", "ministral3", "mixtral", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    *("smollm3", "starcoder2"),
)

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "falcon-alibi": ("falcon", {"alibi": True}),
    "falcon-new-decoder": ("falcon", {"new_decoder_architecture": True}),
    "gpt_bigcode-multi-head": ("gpt_bigcode", {"multi_query": False}),
    "gemma2-no-caps": ("gemma2", {"attn_logit_softcapping": None}),
    "gpt2-scaled-by-layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    **{
        f"{kind}-dynamic-rope": (kind, _DYNAMIC)
        for kind in ("llama", "qwen2", "granite", "olmo2", "exaone4", "smollm3")
    },
    **{f"{kind}-long-rope": (kind, _LONG) for kind in ("llama", "mistral", "qwen3_moe", "granite")},
    **{f"{kind}-yarn-rope": (kind, _YARN) for kind in ("llama", "qwen2", "olmo3", "gpt_neox")},
    **{f"{kind}-llama3-rope": (kind, _LLAMA3) for kind in ("llama", "apertus")},
    "phi3-long-rope": ("phi3", {**_LONG, "original_max_position_embeddings": 32}),
    "phimoe-long-rope": (
        "phimoe",
        {"rope_parameters": {**_LONG["rope_parameters"], "short_mscale": 1.1, "long_mscale": 1.3}},
    ),
    "bert-encoder": ("bert", {"is_decoder": False}),
    "roberta-encoder": ("roberta", {"is_decoder": False}),
    **{f"{kind}-sliding": (kind, _SLIDING) for kind in _SLIDING_ON_DEMAND},
}
"""Configurations that differ in kind from the default ones of their architecture."""

UNBUILDABLE = {
    "blt": "its patcher, global and local models must fit each other in ways that sizes alone do not say",
    "dots3_note": "its default audio adapter does not fit other sizes",
    "gemma3n": "needs timm, which is not installed; `gemma3n_text` is tried",
    "gemma4_assistant": "a draft model, which runs beside its target only",
    "gemma4_unified_assistant": "a draft model, which runs beside its target only",
    "musicgen": "transformers builds no causal model of its composed configuration",
    "musicgen_melody": "transformers builds no causal model of its composed configuration",
}
"""Causal types that no tiny configuration is made of here, and why."""

_BOTH_ATTENTIONS = ["sliding_attention", "full_attention"]
_DECODERS_ON_DEMAND = (
    *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert"),
    *("rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl", "xmod"),
)
"""Encoders, unless their configuration says otherwise: as causal language models they are used with `is_decoder`."""
_OWN: dict[str, dict[str, Any]] = {
    **{name: {"is_decoder": True} for name in _DECODERS_ON_DEMAND},
    "bamba": {"mamba_d_head": 32, "attn_layer_indices": [1]},
    "cohere_compass_text": {
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in _BOTH_ATTENTIONS}
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots3_note_text": {"kv_lora_rank": 48},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "layer_types": _BOTH_ATTENTIONS * 2,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "granitemoehybrid": {"mamba_d_head": 32, "layer_types": ["mamba", "attention"]},
    "hrm_text": {"H_cycles": 1, "L_cycles": 2, "L_bp_cycles": [1]},
    "jamba": {"attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"qk_head_dim": 32},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "mllama_text_model": {"cross_attention_layers": [1]},
    "moshi": {"num_codebooks": 2},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
    },
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "num_key_value_heads": 4,
    },
    "zamba2": {"mamba_headdim": 64, "attention_hidden_size": 128, "attention_head_dim": 32, "num_key_value_heads": 4},
    "zaya": {"num_experts_per_tok": 1},
}
"""What single architectures need beside the common sizes."""


def _layers_of_each_kind(default: PretrainedConfig) -> dict[str, Any]:
    """Every list with an entry per layer, cut to the first layer of each kind; and how many those are."""
    count_name = next((name for name in _LAYER_COUNTS if isinstance(vars(default).get(name), int)), None)
    if count_name is None:
        return {}
    count: int = getattr(default, count_name)
    lists = {
        name: value
        for name, value in vars(default).items()
        if isinstance(value, list) and len(value) == count and not name.startswith("_")
    }
    kinds: dict[str, int] = {}
    for layer in range(count):
        kinds.setdefault(repr([value[layer] for value in lists.values()]), layer)
    layers = sorted(kinds.values())[:_MOST_LAYERS]
    if len(layers) < 2:
        layers = [0, 1]
    return {count_name: len(layers), **{name: [value[layer] for layer in layers] for name, value in lists.items()}}


def _sizes(default: PretrainedConfig) -> dict[str, Any]:
    aliases = default.attribute_map or {}
    fields = vars(default)
    sizes = {
        name: value
        for name, value in _SMALL.items()
        # What is off stays off.
        if name in fields and name not in aliases and _is_size(name, fields[name])
    }
    if "kv_lora_rank" in fields and "num_key_value_heads" in sizes:
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    return sizes


def _is_size(name: str, current: object) -> bool:
    if isinstance(current, bool):
        return False
    if current is None:
        return name in _NEEDED
    return isinstance(current, int) and (current != 0 or name.endswith("_id"))


def _shrunk(config_class: type[PretrainedConfig], own: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Keyword arguments of tiny configurations, the likeliest first."""
    default = config_class()
    sizes = _sizes(default)
    subs: dict[str, Any] = {}
    for name in config_class.sub_configs or {}:
        current = vars(default).get(name)
        if isinstance(current, PretrainedConfig):
            subs[name] = next(_shrunk(type(current), _OWN.get(current.model_type, {})))
    layers = _layers_of_each_kind(default)
    yield {**sizes, **layers, **subs, **own}
    yield {**sizes, **subs, **own}


def tiny_config(name: str) -> PretrainedConfig:
    """A tiny configuration of a causal model type, or of one of VARIANTS. Raises what transformers raises."""
    model_type, own = VARIANTS.get(name, (name, {}))
    config_class = CONFIG_MAPPING[model_type]
    failure: Exception | None = None
    # A copy: configurations write defaults into the dicts that they are given.
    for fields in _shrunk(config_class, copy.deepcopy({**_OWN.get(model_type, {}), **own})):
        try:
            return config_class(**fields)
        except Exception as error:  # lists that must not be given, sizes that do not fit: the next way
            failure = error
    assert failure is not None
    raise failure
