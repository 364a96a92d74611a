"""The models that the integration suites export; each export costs seconds, so they share them."""

from __future__ import annotations

from typing import Any

# Every pair of (architecture feature, group size, head_dim, ties) that can meet appears at least once.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-gqa2-d64": ("llama", {"heads": 4, "kv_heads": 2, "head_dim": 64}),
    "llama-gqa8-d128-tied": ("llama", {"heads": 8, "kv_heads": 1, "head_dim": 128, "tied": True}),
    "smollm-gqa3-d64-tied": ("smollm", {"heads": 3, "kv_heads": 1, "head_dim": 64, "hidden": 192}),
    "qwen2-gqa1-d80-tied": ("qwen2", {"heads": 2, "kv_heads": 2, "head_dim": 80, "hidden": 160}),
    "qwen3-gqa4-d128-tied": ("qwen3", {"heads": 8, "kv_heads": 2, "head_dim": 128}),
    "qwen3-gqa1-d64": ("qwen3", {"heads": 2, "kv_heads": 2, "head_dim": 64, "tied": False}),
    "mistral-gqa8-d80-w8": ("mistral", {"heads": 8, "kv_heads": 1, "head_dim": 80, "window": 8}),
    "mistral-gqa2-d128-w5-tied": ("mistral", {"heads": 4, "kv_heads": 2, "head_dim": 128, "window": 5, "tied": True}),
    "phi3-gqa4-d80": ("phi3", {"heads": 4, "kv_heads": 1, "head_dim": 80, "hidden": 320}),
    "gemma3-gqa2-d64-w8-tied": ("gemma3", {"heads": 4, "kv_heads": 2, "head_dim": 64, "window": 8}),
}

# What attends or feeds forward otherwise than the models above: see tests/models.py.
OTHER_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2-capped-w8": ("gemma2", {}),
    "gemma4-shapes-shared-w8": ("gemma4", {}),
    "granite-sinks-w8": ("granite_swa", {}),
    "deepseek3-latent": ("deepseek3", {}),
    "qwen3-experts": ("qwen3_moe", {}),
    "gptoss-sinks-experts-w8": ("gpt_oss", {}),
    "llama4-chunks-experts-w8": ("llama4", {}),
    "bloom-alibi": ("bloom", {}),
    "lfm2-convolutions": ("lfm2", {}),
    "qwen3next-delta-rule": ("qwen3_next", {}),
    "bamba-mamba2-attention": ("bamba", {}),
    "mamba2-alone": ("mamba2", {}),
    "mamba-scan-alone": ("mamba", {}),
    "kimi-delta-rule-latent": ("kimi", {}),
    "recurrentgemma-w8": ("recurrent_gemma", {}),
}
ALL_CONFIGS = {**CONFIGS, **OTHER_KINDS}
