"""Builders of tiny random models: Hugging Face folders with a tokenizer, as users would have them.

Weights are scaled so that logits spread realistically (standard deviation about 2): with the default initialisation
every logit is close to 0 and an absolute error bound would say nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

VOCAB_SIZE = 384
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CORPUS = (
    "The quick brown fox jumps over the lazy dog. A branch forks from the trunk and the trunk goes on.",
    "You are a helpful assistant. Answer yes or no. What is the capital of France? The capital is Paris.",
    "def add(a, b):\n    return a + b\n\nfor i in range(10):\n    print(i, add(i, 1))\n",
    '{"name": "search", "arguments": {"query": "weather", "limit": 3}}\n{"name": "stop", "arguments": {}}\n',
    "one two three four five six seven eight nine ten, and then again: one two three four five.",
)


@dataclass(frozen=True)
class TinySpec:
    """What a tiny model is made of. `kind` is the architecture; `window` only matters where it has one."""

    kind: str = "llama"
    layers: int = 2
    hidden: int = 64
    intermediate: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    tied: bool = False
    window: int | None = None
    vocab: int = VOCAB_SIZE
    max_positions: int = 2048
    seed: int = 0

    @property
    def name(self) -> str:
        """A folder name that tells the models apart."""
        ties = "tied" if self.tied else "untied"
        window = f"-w{self.window}" if self.window else ""
        shape = f"l{self.layers}-h{self.hidden}x{self.intermediate}-q{self.heads}kv{self.kv_heads}d{self.head_dim}"
        return f"{self.kind}-{shape}-{ties}{window}-v{self.vocab}p{self.max_positions}s{self.seed}"


# Defaults that make each kind itself: its ties, its window, the shape it can have at all.
KINDS: dict[str, TinySpec] = {
    "llama": TinySpec("llama"),
    "smollm": TinySpec("smollm", heads=3, kv_heads=1, hidden=96, head_dim=32, tied=True),
    "qwen2": TinySpec("qwen2", tied=True),
    "qwen3": TinySpec("qwen3", head_dim=32, tied=True),
    "mistral": TinySpec("mistral", window=8),
    "phi3": TinySpec("phi3", heads=4, kv_heads=4),
    "gemma3": TinySpec("gemma3", tied=True, window=8),
    "gemma2": TinySpec("gemma2", tied=True, window=8),
    "gemma4": TinySpec("gemma4", layers=4, tied=True, window=8),
    "granite_swa": TinySpec("granite_swa", window=8),
    "deepseek3": TinySpec("deepseek3", kv_heads=4),
    "deepseek3_moe": TinySpec("deepseek3_moe", kv_heads=4, intermediate=64),
    "glm4_moe": TinySpec("glm4_moe", intermediate=64),
    "qwen3_moe": TinySpec("qwen3_moe", intermediate=64),
    "gpt_oss": TinySpec("gpt_oss", intermediate=64, window=8),
    "llama4": TinySpec("llama4", window=8),
    "lfm2": TinySpec("lfm2", layers=3),
    "qwen3_next": TinySpec("qwen3_next", layers=3, intermediate=64),
    "bamba": TinySpec("bamba"),
    "mamba2": TinySpec("mamba2"),
    "mamba": TinySpec("mamba", layers=2),
    "kimi": TinySpec("kimi", layers=3, kv_heads=4),
    "recurrent_gemma": TinySpec("recurrent_gemma", layers=2, kv_heads=1, window=8),
    "bloom": TinySpec("bloom", kv_heads=4, tied=True),
}


def tiny_spec(kind: str = "llama", **overrides: Any) -> TinySpec:
    """The spec of a kind with some fields replaced."""
    return replace(KINDS[kind], **overrides)


def _sliding(spec: TinySpec) -> list[str]:
    return [("sliding_attention", "full_attention")[layer % 2] for layer in range(spec.layers)]


def _latent(spec: TinySpec) -> dict[str, Any]:
    return {
        "q_lora_rank": 32,
        "kv_lora_rank": 48,
        "qk_nope_head_dim": spec.head_dim,
        "qk_rope_head_dim": 16,
        "v_head_dim": 24,
    }


def _experts_beside_shared(spec: TinySpec) -> dict[str, Any]:
    return {
        "first_k_dense_replace": 1,
        "moe_intermediate_size": spec.intermediate,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 3,
        "n_group": 2,
        "topk_group": 1,
    }


# Each attends in a way of its own: model type and what its config says beside the common fields.
_BY_MODEL_TYPE: dict[str, tuple[str, Callable[[TinySpec], dict[str, Any]]]] = {
    # Capped scores, of attention and of the head.
    "gemma2": (
        "gemma2",
        lambda spec: {
            "head_dim": spec.head_dim,
            "query_pre_attn_scalar": spec.head_dim,
            "sliding_window": spec.window,
            "layer_types": _sliding(spec),
            "attn_logit_softcapping": 2.0,
        },
    ),
    # Layers of two shapes, the last two of which attend to keys and values of others.
    "gemma4": (
        "gemma4_text",
        lambda spec: {
            "head_dim": spec.head_dim,
            "global_head_dim": 4 * spec.head_dim,
            "num_global_key_value_heads": 1,
            "sliding_window": spec.window,
            "layer_types": _sliding(spec),
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 32,
            "vocab_size_per_layer_input": spec.vocab,
        },
    ),
    # Sink scores, in windowed layers.
    "granite_swa": (
        "granite_swa",
        lambda spec: {"sliding_window": spec.window, "layer_types": _sliding(spec), "head_dim": spec.head_dim},
    ),
    # Latent attention.
    "deepseek3": ("deepseek_v3", lambda spec: {**_latent(spec), "first_k_dense_replace": spec.layers}),
    # The same, with experts.
    "deepseek3_moe": (
        "deepseek_v3",
        lambda spec: {**_latent(spec), **_experts_beside_shared(spec)},
    ),
    # Experts beside a shared one, part of each head turned.
    "glm4_moe": (
        "glm4_moe",
        lambda spec: {"head_dim": spec.head_dim, "attention_bias": True, **_experts_beside_shared(spec)},
    ),
    # Three of eight experts.
    "qwen3_moe": (
        "qwen3_moe",
        lambda spec: {
            "head_dim": spec.head_dim,
            "moe_intermediate_size": spec.intermediate,
            "num_experts": 8,
            "num_experts_per_tok": 3,
        },
    ),
    # Experts with biases, whose gate and up lie between each other; sink scores.
    "gpt_oss": (
        "gpt_oss",
        lambda spec: {
            "head_dim": spec.head_dim,
            "sliding_window": spec.window,
            "layer_types": _sliding(spec),
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    # Layers that see one chunk; one expert beside a shared one.
    "llama4": (
        "llama4_text",
        lambda spec: {
            "head_dim": spec.head_dim,
            "intermediate_size_mlp": spec.intermediate,
            "attention_chunk_size": spec.window,
            "no_rope_layers": [(layer + 1) % 2 for layer in range(spec.layers)],
            "num_local_experts": 4,
        },
    ),
    # Convolutions around attention.
    "lfm2": (
        "lfm2",
        lambda spec: {
            "layer_types": ["conv", "full_attention", "conv"][: spec.layers],
            "block_auto_adjust_ff_dim": False,
            "conv_bias": True,
        },
    ),
    # Gated delta rule, and experts.
    "qwen3_next": (
        "qwen3_next",
        lambda spec: {
            "layer_types": ["linear_attention", "full_attention", "linear_attention"][: spec.layers],
            "head_dim": spec.head_dim,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": spec.intermediate,
            "shared_expert_intermediate_size": spec.intermediate,
        },
    ),
    # Mamba-2 beside attention.
    "bamba": (
        "bamba",
        lambda spec: {
            "attn_layer_indices": [1],
            "mamba_n_heads": 4,
            "mamba_d_head": 2 * spec.hidden // 4,
            "mamba_d_state": 16,
            "mamba_n_groups": 1,
        },
    ),
    # Mamba-2 alone.
    "mamba2": (
        "mamba2",
        lambda spec: {"num_heads": 4, "head_dim": 2 * spec.hidden // 4, "state_size": 16, "n_groups": 2},
    ),
    # Selective scans alone.
    "mamba": (
        "mamba",
        lambda spec: {"state_size": 8, "time_step_rank": 4, "intermediate_size": 2 * spec.hidden, "expand": 2},
    ),
    # The delta rule over keys that fade number by number, latent attention, experts.
    "kimi": (
        "kimi_linear",
        lambda spec: {
            "layer_types": ["linear_attention", "full_attention", "linear_attention"][: spec.layers],
            "linear_num_heads": 2,
            "linear_head_dim": 16,
            "kv_lora_rank": 48,
            "qk_nope_head_dim": spec.head_dim,
            "qk_rope_head_dim": 16,
            "v_head_dim": 24,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": spec.intermediate,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    # RG-LRU behind a convolution, and attention with a window.
    "recurrent_gemma": (
        "recurrent_gemma",
        lambda spec: {
            "lru_width": spec.hidden,
            "head_dim": spec.head_dim,
            "attention_window_size": spec.window,
            "block_types": ["recurrent", "attention"],
        },
    ),
    # ALiBi.
    "bloom": ("bloom", lambda spec: {"n_layer": spec.layers, "n_head": spec.heads}),
}


def _config(spec: TinySpec) -> Any:
    import transformers

    common: dict[str, Any] = {
        "vocab_size": spec.vocab,
        "hidden_size": spec.hidden,
        "intermediate_size": spec.intermediate,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "max_position_embeddings": spec.max_positions,
        "tie_word_embeddings": spec.tied,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
    if spec.kind in ("llama", "smollm"):
        return transformers.LlamaConfig(head_dim=spec.head_dim, **common)
    if spec.kind == "qwen2":
        assert spec.head_dim * spec.heads == spec.hidden, "Qwen2 has no head_dim of its own"
        return transformers.Qwen2Config(**common)
    if spec.kind == "qwen3":
        return transformers.Qwen3Config(head_dim=spec.head_dim, **common)
    if spec.kind == "mistral":
        return transformers.MistralConfig(head_dim=spec.head_dim, sliding_window=spec.window, **common)
    if spec.kind == "phi3":
        assert spec.head_dim * spec.heads == spec.hidden, "Phi-3 has no head_dim of its own"
        return transformers.Phi3Config(
            original_max_position_embeddings=spec.max_positions, sliding_window=spec.window, **common
        )
    if spec.kind == "gemma3":
        # Alternates windowed and full layers, with a rotary base for each.
        kinds = ["sliding_attention", "full_attention"]
        del common["rope_parameters"]
        return transformers.Gemma3TextConfig(
            head_dim=spec.head_dim,
            sliding_window=spec.window,
            query_pre_attn_scalar=spec.head_dim,
            layer_types=[kinds[layer % 2] for layer in range(spec.layers)],
            **common,
        )
    if spec.kind in _BY_MODEL_TYPE:
        model_type, fields = _BY_MODEL_TYPE[spec.kind]
        del common["rope_parameters"]
        return transformers.CONFIG_MAPPING[model_type](**{**common, **fields(spec)})
    raise ValueError(f"unknown kind {spec.kind!r}; expected one of {sorted(KINDS)}")


def tiny_model(spec: TinySpec) -> Any:
    """A random transformers model in float32, the same for the same spec."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_config(_config(spec), dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(spec.seed + 1)
    logit_std = 2.0
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if "norm" in name or ".ln_" in name:
                # Gemma's and Qwen3-Next's norms scale by 1 + weight, the others by weight.
                centred = spec.kind in ("gemma2", "gemma3", "qwen3_next") and "linear_attn" not in name
                weight.copy_(0.1 * noise if centred else 1 + 0.1 * noise)
            elif weight.dim() == 1:
                weight.copy_(0.1 * noise)
            elif "lm_head" in name or ("embed" in name and spec.tied):
                weight.copy_(noise * logit_std / spec.hidden**0.5)
            elif "embed" in name:
                weight.copy_(noise)
            else:
                weight.copy_(noise * 1.2 / weight.shape[-1] ** 0.5)
    return model


def tiny_tokenizer(vocab: int = VOCAB_SIZE) -> Any:
    """A byte-level BPE with ChatML tokens, trained on a few lines; a `tokenizers.Tokenizer`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def write_tokenizer(folder: Path, vocab: int = VOCAB_SIZE) -> None:
    """Writes tokenizer.json, tokenizer_config.json (ChatML) and generation_config.json."""
    tokenizer = tiny_tokenizer(vocab)
    tokenizer.save(str(folder / "tokenizer.json"))
    eos = [tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id(TURN_END)]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos, "pad_token_id": eos[0]}, indent=2))


def write_hf_folder(spec: TinySpec, folder: Path) -> Path:
    """Writes config, safetensors and tokenizer files of a tiny model as `save_pretrained` would; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny_model(spec).save_pretrained(folder)
    write_tokenizer(folder, spec.vocab)
    return folder
