"""Models of transformers, rewritten for export and run eagerly in chunks, against themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from agentkv_runtime.backends import PROGRAM_BACKENDS
from agentkv_runtime.errors import UnsupportedModelError
from agentkv_runtime.export.cpu.feed_forward import SplitMlp, TanhGelu, replace_feed_forward
from agentkv_runtime.export.cpu.norms import LinearLayerNorm, LinearRmsNorm, linear_norms
from agentkv_runtime.export.linears import replace_transposed_linears
from agentkv_runtime.export.norms import RmsNorm, note_norm_widths, replace_norms
from agentkv_runtime.export.quantization import Recipe
from agentkv_runtime.export.rotary import own_rotary
from agentkv_runtime.export.target import Target
from agentkv_runtime.hf.attention import agentkv_attention
from agentkv_runtime.hf.check import check_in_chunks, reference_logits, short_windows
from agentkv_runtime.hf.deferred import load_all
from agentkv_runtime.hf.op import active_cache
from agentkv_runtime.hf.wrapper import CachedForward
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from tests.architectures.outcome import random_model
from tests.architectures.tiny_configs import tiny_config
from tests.runtime.growing_cache import GrowingCache

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [4.0 + i for i in range(8)],
    "original_max_position_embeddings": 64,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: transformers.LlamaConfig(**SHAPE),
    "llama-llama3-rope": lambda: transformers.LlamaConfig(**SHAPE, rope_parameters=LLAMA3_ROPE),
    "llama-linear-rope": lambda: transformers.LlamaConfig(
        **SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    ),
    "llama-yarn-rope": lambda: transformers.LlamaConfig(
        **SHAPE,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "qwen2": lambda: transformers.Qwen2Config(**SHAPE),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE, head_dim=32),
    "mistral-window": lambda: transformers.MistralConfig(**SHAPE, sliding_window=5),
    "phimoe-window-not-handed-on": lambda: transformers.PhimoeConfig(**SHAPE, sliding_window=5, num_local_experts=4),
    "phi3": lambda: transformers.Phi3Config(**SHAPE),
    "phi3-long-rope": lambda: transformers.Phi3Config(
        **SHAPE, rope_parameters=LONG_ROPE, original_max_position_embeddings=64
    ),
    "smollm3-some-layers-without-rope": lambda: transformers.SmolLM3Config(**SHAPE),
    "olmo-layer-norm-without-weights": lambda: transformers.OlmoConfig(**SHAPE),
    "olmo2-norm-over-all-heads": lambda: transformers.Olmo2Config(**SHAPE),
    "gemma": lambda: transformers.GemmaConfig(**SHAPE, head_dim=16),
    "gemma2-final-cap": lambda: transformers.Gemma2Config(
        **SHAPE, head_dim=16, attn_logit_softcapping=None, sliding_window=5
    ),
    "gemma3-two-ropes": lambda: transformers.Gemma3TextConfig(**SHAPE, head_dim=16, sliding_window=5),
    "granite-scalings": lambda: transformers.GraniteConfig(
        **SHAPE, embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=2.0, attention_multiplier=0.2
    ),
    "starcoder2-layer-norm-biases": lambda: transformers.Starcoder2Config(**SHAPE),
    "gpt-neox-partial-rope": lambda: transformers.GPTNeoXConfig(
        **{k: v for k, v in SHAPE.items() if k != "num_key_value_heads"}
    ),
    "cohere2-interleaved": lambda: transformers.Cohere2Config(**SHAPE, logit_scale=1.0),
    "stablelm-partial-rope": lambda: transformers.StableLmConfig(**SHAPE),
    "glm4-interleaved-partial-rope": lambda: transformers.Glm4Config(**SHAPE, head_dim=16),
}


def build(config: PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


@torch.no_grad()
@pytest.mark.parametrize("backend", PROGRAM_BACKENDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_rewritten_model_computes_the_same_in_chunks(name: str, backend: str) -> None:
    model = build(CONFIGS[name]())
    tokens, position = torch.arange(3, 22), torch.arange(19)
    want = model(tokens[None], use_cache=False).logits[0]
    assert want.std() > 0.1
    with own_rotary(model) as own, active_cache(GrowingCache()):
        assert own
        Target(backend).lowering().prepare(model, Recipe(), "fp32")
        load_all(model)
        forward = CachedForward(model)
        got = [forward(tokens[a:b], position[a:b], torch.arange(b - a)) for a, b in ((0, 7), (7, 8), (8, 18), (18, 19))]
        torch.testing.assert_close(torch.cat(got), want, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_only_the_selected_rows_meet_the_head() -> None:
    model = build(CONFIGS["llama"]())
    head = model.get_output_embeddings()
    seen: list[int] = []
    head.register_forward_pre_hook(lambda _module, args: seen.append(args[0].shape[-2]))
    forward = CachedForward(model)
    tokens, position = torch.arange(9), torch.arange(9)
    with active_cache(GrowingCache()):
        every = forward(tokens, position, torch.arange(9))
    with active_cache(GrowingCache()):
        some = forward(tokens, position, torch.tensor([8, 2]))
    assert seen == [9, 2]
    torch.testing.assert_close(some, every[[8, 2]])


def test_which_layers_are_replaced() -> None:
    model = build(CONFIGS["qwen3"]())
    assert replace_norms(model, linear_norms) == 9
    layer = model.model.layers[0]
    assert isinstance(layer.input_layernorm, LinearRmsNorm)
    assert isinstance(layer.self_attn.q_norm, RmsNorm)
    olmo = build(CONFIGS["olmo-layer-norm-without-weights"]())
    replace_norms(olmo, linear_norms)
    assert isinstance(olmo.model.norm, LinearLayerNorm)
    phi = build(CONFIGS["phi3"]())
    replace_feed_forward(phi)
    assert isinstance(phi.model.layers[0].mlp, SplitMlp)
    gemma = build(CONFIGS["gemma"]())
    replace_feed_forward(gemma)
    assert isinstance(gemma.model.layers[0].mlp.act_fn, TanhGelu)


@torch.no_grad()
def test_transposed_linears_become_plain_ones() -> None:
    model = build(transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=128, n_positions=64))
    tokens = torch.arange(3, 22)[None]
    want = model(tokens, use_cache=False).logits
    replace_transposed_linears(model)
    load_all(model)
    assert sum(isinstance(module, torch.nn.Linear) for module in model.modules()) == 2 * 4 + 1
    torch.testing.assert_close(model(tokens, use_cache=False).logits, want, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_long_rope_is_fixed_by_the_context_not_by_the_input() -> None:
    tokens, position = torch.arange(3, 103), torch.arange(100)
    want = build(CONFIGS["phi3-long-rope"]())(tokens[None], use_cache=False).logits[0]
    model = build(CONFIGS["phi3-long-rope"]())
    with own_rotary(model, max_context=128), active_cache(GrowingCache()):
        forward = CachedForward(model)
        # The first chunk is short, and yet is turned by the long frequencies that the 100th token needs.
        got = [forward(tokens[a:b], position[a:b], torch.arange(b - a)) for a, b in ((0, 10), (10, 100))]
    torch.testing.assert_close(torch.cat(got), want, rtol=1e-4, atol=1e-4)


def test_rotary_functions_come_back() -> None:
    from transformers.models.llama import modeling_llama

    before = modeling_llama.apply_rotary_pos_emb
    model = build(CONFIGS["llama"]())
    rotary = model.model.rotary_emb
    with own_rotary(model):
        assert modeling_llama.apply_rotary_pos_emb is not before
        assert model.model.rotary_emb is not rotary
    assert modeling_llama.apply_rotary_pos_emb is before
    assert model.model.rotary_emb is rotary


def test_dropout_is_refused() -> None:
    forward = CachedForward(build(transformers.LlamaConfig(**SHAPE, attention_dropout=0.5))).train()
    with active_cache(GrowingCache()), pytest.raises(UnsupportedModelError, match=r"dropout 0.5; call model.eval\(\)"):
        forward(torch.arange(4), torch.arange(4), torch.arange(4))


@torch.no_grad()
def test_windows_are_tried_though_the_tokens_are_few() -> None:
    model = build(transformers.MistralConfig(**SHAPE, sliding_window=64))
    with short_windows(model):
        want = reference_logits(model)
        check_in_chunks(model, want)
    assert model.config.sliding_window == 64
    with pytest.raises(UnsupportedModelError, match="mistral computes something else through the cache"):
        check_in_chunks(model, want)


def test_a_mask_and_missing_positions_are_refused() -> None:
    module = torch.nn.Module()
    module.layer_idx, module.config = 0, transformers.LlamaConfig(**SHAPE)
    q = torch.zeros(1, 2, 3, 16)
    with pytest.raises(UnsupportedModelError, match="mask"):
        agentkv_attention(module, q, q, q, torch.zeros(1, 1, 3, 3))
    with pytest.raises(UnsupportedModelError, match="position_ids"):
        agentkv_attention(module, q, q, q, None)


def test_rotary_embeddings_stay_where_a_model_reads_more_of_them_than_their_results() -> None:
    swa = random_model(tiny_config("granite_swa"))
    rotaries = {name: module for name, module in swa.named_modules() if name.endswith("rotary_emb")}
    with own_rotary(swa) as own:
        assert not own
        assert all(swa.get_submodule(name) is module for name, module in rotaries.items())


@torch.no_grad()
@pytest.mark.parametrize("name", ["gemma4_text", "deepseek_v3"])  # takes one tensor; turns interleaved pairs
def test_rotary_functions_of_another_form_stay(name: str) -> None:
    model = random_model(tiny_config(name))
    tokens = torch.arange(1, 9)[None]
    want = model(tokens, use_cache=False).logits
    with own_rotary(model) as own:
        assert not own
        torch.testing.assert_close(model(tokens, use_cache=False).logits, want)


def test_norms_without_weights_take_the_width_of_what_they_meet() -> None:
    model = random_model(tiny_config("nanochat"))
    q_norm = model.model.layers[0].self_attn.q_norm
    assert replace_norms(model, linear_norms) == 0
    note_norm_widths(model, lambda: model(torch.arange(1, 4)[None], use_cache=False))
    assert q_norm.normalized_shape == (16,)
    # Per layer two around attention's input and the feed-forward's, q's and k's; one at either end.
    assert replace_norms(model, linear_norms) == 2 * 4 + 1
    attention = model.model.layers[0].self_attn
    assert isinstance(attention.q_norm, RmsNorm)
    assert attention.q_norm.weight.shape == (16,)


def test_a_norm_that_meets_several_widths_stays() -> None:
    class FreeNorm(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    model = torch.nn.ModuleDict({"norm": FreeNorm()})
    note_norm_widths(model, lambda: [model["norm"](torch.ones(2, width)) for width in (8, 16)])
    assert replace_norms(model, linear_norms) == 0
