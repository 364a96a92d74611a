"""Settings that configs of several architectures share."""

from __future__ import annotations

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROPE = {"rope_type": "default", "rope_theta": 20000.0}
OLD_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LAYER_NORM = {"attention.layer_norm_rms_epsilon": None}
PARTIAL = {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}}
OLD_PARTIAL = {"rope_parameters": {**OLD_ROPE, "partial_rotary_factor": 0.5}}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 20000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 24.0,
    "beta_slow": 2.0,
}
GRANITE = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.25,
    "attention_multiplier": 0.125,
    "logits_scaling": 8.0,
}
OLMO3_ROPE = {"full_attention": YARN, "sliding_attention": ROPE}
GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 20000.0,
    "partial_rotary_factor": 0.75,
    "long_factor": [1.0, 1.5, 2.0, 4.0, 8.0, 16.0],
    "short_factor": [1.0, 1.0, 1.25, 1.5, 2.0, 2.5],
    "original_max_position_embeddings": 32,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LAYERS4 = {"num_hidden_layers": 4}
EVERY_FOURTH = ["sliding_attention"] * 3 + ["full_attention"]
