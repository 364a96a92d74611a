"""EAGLE-3 checkpoints in the published layout, and what their head computes, in plain torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn import functional

from tests.models import VOCAB_SIZE

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "vocab_size": VOCAB_SIZE,
    "draft_vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 2048,
}


def head_weights(draft_vocab: int = VOCAB_SIZE, embedding: bool = False, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights; a draft vocabulary smaller than the target's is every so manyth token of it."""
    generator = torch.Generator().manual_seed(seed)
    width, inner, q, kv = 64, 96, 64, 32
    shapes = {
        "fc.weight": (width, 3 * width),
        "midlayer.self_attn.q_proj.weight": (q, 2 * width),
        "midlayer.self_attn.k_proj.weight": (kv, 2 * width),
        "midlayer.self_attn.v_proj.weight": (kv, 2 * width),
        "midlayer.self_attn.o_proj.weight": (width, q),
        "midlayer.mlp.gate_proj.weight": (inner, width),
        "midlayer.mlp.up_proj.weight": (inner, width),
        "midlayer.mlp.down_proj.weight": (width, inner),
        "lm_head.weight": (draft_vocab, width),
    }
    weights = {name: torch.randn(shape, generator=generator) * 1.2 / shape[1] ** 0.5 for name, shape in shapes.items()}
    for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        weights[f"midlayer.{name}.weight"] = 1 + 0.1 * torch.randn(width, generator=generator)
    weights["norm.weight"] = 1 + 0.1 * torch.randn(width, generator=generator)
    if embedding:
        weights["embed_tokens.weight"] = torch.randn(VOCAB_SIZE, width, generator=generator)
    if draft_vocab < VOCAB_SIZE:
        said = torch.arange(draft_vocab) * (VOCAB_SIZE // draft_vocab) + 1
        weights["d2t"] = said - torch.arange(draft_vocab)
        weights["t2d"] = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
        weights["t2d"][said] = True
    return weights


def write_head(
    folder: Path, weights: dict[str, torch.Tensor], *, pickled: bool = False, prefix: str = "", **config: Any
) -> Path:
    """Writes a checkpoint; `config` replaces fields of its config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    named = {prefix + name: tensor for name, tensor in weights.items()}
    if pickled:
        torch.save(named, folder / "pytorch_model.bin")
    else:
        save_file(named, folder / "model.safetensors")
    facts = {**CONFIG, "draft_vocab_size": weights["lm_head.weight"].shape[0], **config}
    (folder / "config.json").write_text(json.dumps(facts))
    return folder


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]) * weight


def _rotated(x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    angles = position[:, None] * CONFIG["rope_theta"] ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


def reference(
    weights: dict[str, torch.Tensor], embedded: torch.Tensor, hidden: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One forward over a whole sequence: embedded and hidden `[T, H]` -> logits `[T, Vd]` and hidden `[T, H]`."""
    layer = {name.removeprefix("midlayer."): tensor for name, tensor in weights.items() if "midlayer." in name}
    position = torch.arange(len(hidden))
    mixed = torch.cat(
        (_norm(embedded, layer["input_layernorm.weight"]), _norm(hidden, layer["hidden_norm.weight"])), -1
    )
    q, k, v = (
        (mixed @ layer[f"self_attn.{name}_proj.weight"].T).view(len(hidden), -1, CONFIG["head_dim"]).transpose(0, 1)
        for name in "qkv"
    )
    attended = functional.scaled_dot_product_attention(
        _rotated(q, position)[None], _rotated(k, position)[None], v[None], is_causal=True, enable_gqa=True
    )[0]
    hidden = hidden + attended.transpose(0, 1).flatten(1) @ layer["self_attn.o_proj.weight"].T
    x = _norm(hidden, layer["post_attention_layernorm.weight"])
    gated = functional.silu(x @ layer["mlp.gate_proj.weight"].T) * (x @ layer["mlp.up_proj.weight"].T)
    hidden = hidden + gated @ layer["mlp.down_proj.weight"].T
    return _norm(hidden, weights["norm.weight"]) @ weights["lm_head.weight"].T, hidden
