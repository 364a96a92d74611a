"""Random small models of every family that is written without torch: shapes, settings and positions as they may be."""

from __future__ import annotations

import random
from typing import Any

import torch
from agentkv_runtime.export.direct.decoder import FAMILIES
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

__all__ = ["random_config", "random_model"]

_WIDTHS = (24, 32, 40, 64, 72, 96, 100, 160, 256, 288)
_HEADS = ((1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (4, 2), (6, 2), (8, 1), (6, 3))
_BIASES = {
    "llama": ("attention_bias", "mlp_bias"),
    "qwen3": ("attention_bias",),
    "seed_oss": ("attention_bias", "attention_out_bias", "mlp_bias"),
    "smollm3": ("attention_bias", "mlp_bias"),
    "gemma": ("attention_bias",),
    "gemma3_text": ("attention_bias",),
}
_HEADLESS = ("qwen2", "smollm3", "phi3")
"""Families whose heads are as wide as the width allows."""
_DIVIDED = ("llama", "gemma3_text")
"""Those whose width transformers wants to be a multiple of the heads, whatever these are."""


def _rope(rng: random.Random, kind: str, turned: int) -> dict[str, Any]:
    theta = rng.choice((1e4, 5e5, 1e6, 12345.678))
    plain = {"rope_type": "default", "rope_theta": theta}
    if kind == "gemma3_text":
        full = rng.choice((plain, {**plain, "rope_type": "linear", "factor": 8.0}))
        return {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    scaled: list[dict[str, Any]] = [plain, plain]
    if kind == "phi3":
        factors = {f"{each}_factor": [1 + rng.random() * 4 for _ in range(turned // 2)] for each in ("short", "long")}
        scaled.append({**plain, "rope_type": "longrope", **factors, "original_max_position_embeddings": 64})
    else:
        scaled += [
            {**plain, "rope_type": "linear", "factor": rng.choice((2.0, 3.7))},
            {**plain, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
            {**plain, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0,
             "beta_slow": 2.0, "attention_factor": 1.1, "truncate": False},
            {**plain, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 64},
        ]  # fmt: skip
    return rng.choice(scaled)


def random_config(rng: random.Random) -> dict[str, Any]:
    """Settings under transformers' names."""
    kind = rng.choice(sorted(FAMILIES))
    heads, kv_heads = rng.choice(_HEADS)
    head_dim, width = rng.choice((8, 16, 24, 32, 64)), rng.choice(_WIDTHS)
    if kind in _HEADLESS:
        width = heads * head_dim
    elif kind in _DIVIDED:
        width = -(-width // heads) * heads
    config: dict[str, Any] = {
        "model_type": kind,
        "hidden_size": width,
        "intermediate_size": rng.choice((*_WIDTHS, 512)),
        "num_hidden_layers": rng.choice((1, 2, 3, 5)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": rng.choice((100, 101, 257, 320, 999)),
        "max_position_embeddings": 256,
        "tie_word_embeddings": rng.random() < 0.5,
        "rms_norm_eps": rng.choice((1e-6, 1e-5)),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
        **{name: rng.random() < 0.5 for name in _BIASES.get(kind, ())},
    }
    if kind not in _HEADLESS:
        config["head_dim"] = head_dim
    turned = head_dim
    if kind == "phi3" and head_dim % 16 == 0 and rng.random() < 0.3:
        config["partial_rotary_factor"] = 0.75
        turned = head_dim * 3 // 4
    config["rope_parameters"] = _rope(rng, kind, turned)
    if kind == "phi3":
        config["original_max_position_embeddings"] = 64
    layers = config["num_hidden_layers"]
    if kind in ("mistral", "phi3"):
        config["sliding_window"] = rng.choice((None, 3, 8))
    if kind in ("qwen2", "qwen3"):
        config |= {
            "use_sliding_window": rng.random() < 0.5,
            "sliding_window": 5,
            "max_window_layers": rng.choice((0, 1, 9)),
        }
    if kind == "smollm3":
        config |= {"no_rope_layer_interval": rng.choice((2, 4))}
        config |= rng.choice(({}, {"use_sliding_window": True, "sliding_window": 4}))
    if kind == "gemma3_text":
        config |= {"sliding_window": rng.choice((3, 8)), "query_pre_attn_scalar": rng.choice((head_dim, 48))}
        config["layer_types"] = [rng.choice(("sliding_attention", "full_attention")) for _ in range(layers)]
    return config


def random_model(config: dict[str, Any], seed: int) -> PreTrainedModel:
    """Random everywhere, biases and norms too, in float32."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = "norm" in name
            scale = 0.1 if is_norm or parameter.dim() == 1 else 1.2 / parameter.shape[-1] ** 0.5
            parameter.copy_(noise * scale + (1 if is_norm and "gemma" not in config["model_type"] else 0))
    made: PreTrainedModel = model.float().eval()
    return made
