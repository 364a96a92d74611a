"""Tiny random models of transformers, written as GGUF files with the package gguf, as llama.cpp's converter writes
them: keys from the model's config, names by the package's own table, tensors transformed. One architecture is one row
of `ARCHITECTURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.models import VOCAB_SIZE
from tests.runtime.sources.gguf_files import write_tokenizer

Floats = npt.NDArray[np.float32]
Tensors = Iterator[tuple[str, Floats]]
Transform = Callable[[Any, str, Floats], Tensors]
"""Of a config, a parameter's name and its value: what is written, by transformers' (or a file's) names."""

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROPE = {"rope_type": "default", "rope_theta": 20000.0}
OLD_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


# Transforms.


def as_it_is(_: Any, name: str, value: Floats) -> Tensors:
    yield name, value


def permuted(config: Any, name: str, value: Floats) -> Tensors:
    """Llama's: the two numbers of a rotation side by side."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = next((n for part, n in heads.items() if part in name), 0)
    if count:
        value = value.reshape(count, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
    yield name, value


def plus_one(_: Any, name: str, value: Floats) -> Tensors:
    yield name, value + np.float32(1) if name.endswith("norm.weight") else value


def across(_: Any, name: str, value: Floats) -> Tensors:
    """GPT-2's."""
    yield name, value.T if name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")) else value


def queries_keys_values(config: Any, name: str, value: Floats) -> Tensors:
    """GPT-NeoX's: of all heads first the queries, then the keys, then the values."""
    if "query_key_value" in name:
        parts = value.reshape(config.num_attention_heads, 3, -1, *value.shape[1:]).swapaxes(0, 1)
        value = parts.reshape(value.shape)
    yield name, value


def falcon_groups(config: Any, name: str, value: Floats) -> Tensors:
    if "query_key_value" in name:
        groups = config.num_kv_heads if config.new_decoder_architecture else 1
        parts = value.reshape(groups, config.num_attention_heads // groups + 2, 16, 64)
        value = np.concatenate([p.reshape(-1, 64) for p in (parts[:, :-2], parts[:, -2], parts[:, -1])])
    yield name, value


def stacked(config: Any, name: str, value: Floats, then: Transform = as_it_is) -> Tensors:
    """Experts as files have them: the gate's and the others apart."""
    if name.endswith("experts.gate_up_proj"):
        gate, up = np.split(value, 2, axis=1)
        yield name.replace("gate_up_proj", "gate_proj.weight"), gate
        yield name.replace("gate_up_proj", "up_proj.weight"), up
    elif name.endswith("experts.down_proj"):
        yield f"{name}.weight", value
    else:
        yield from then(config, name, value)


def granite_experts(config: Any, name: str, value: Floats) -> Tensors:
    place = name.replace("model.layers.", "blk.").partition(".block_sparse_moe")[0]
    if name.endswith("experts.gate_up_proj"):
        gate, up = np.split(value, 2, axis=1)
        yield f"{place}.ffn_gate_exps.weight", gate
        yield f"{place}.ffn_up_exps.weight", up
    elif name.endswith("experts.down_proj"):
        yield f"{place}.ffn_down_exps.weight", value
    elif name.endswith("router.weight"):
        yield f"{place}.ffn_gate_inp.weight", value
    else:
        yield from permuted(config, name, value)


def by_turns(_: Any, name: str, value: Floats) -> Tensors:
    """gpt-oss's: gate and others are transposed and by turns."""
    if name.endswith(("experts.gate_up_proj", "experts.gate_up_proj_bias")):
        end = ".bias" if name.endswith("_bias") else ".weight"
        rows = value.swapaxes(1, 2) if end == ".weight" else value
        stem = name.removesuffix("_bias").removesuffix("gate_up_proj")
        yield f"{stem}gate_proj{end}", rows[:, ::2]
        yield f"{stem}up_proj{end}", rows[:, 1::2]
    elif name.endswith("experts.down_proj"):
        yield f"{name}.weight", value.swapaxes(1, 2)
    elif name.endswith("experts.down_proj_bias"):
        yield name.replace("down_proj_bias", "down_proj.bias"), value
    elif name.endswith("sinks"):
        yield f"{name}.weight", value
    else:
        yield name, value


def shared_gate_is_a_vector(config: Any, name: str, value: Floats) -> Tensors:
    yield from stacked(config, name, value[0] if name.endswith("shared_expert_gate.weight") else value)


# Rows.


@dataclass(frozen=True)
class Written:
    """An architecture: which model, and what becomes of it."""

    name: str
    """llama.cpp's."""
    config: Mapping[str, Any]
    """Beside SHAPE."""
    transform: Transform = as_it_is
    keys: Mapping[str, Any | Callable[[Any], Any]] = field(default_factory=dict)
    """Beside the common ones, below the architecture's name; functions are of the config, None takes one away."""
    head_dim: bool = True
    """Does the config say how long heads are?"""
    unsaid: Mapping[str, Any] = field(default_factory=dict)
    """What the file does not say, and what the description says instead."""


def _value(keyed: Any, config: Any) -> Any:
    return keyed(config) if callable(keyed) else keyed


def named(name: str) -> Callable[[Any], Any]:
    return lambda config: getattr(config, name)


def turned(config: Any) -> int:
    return int(config.rope_parameters["partial_rotary_factor"] * 16)


def windows(config: Any) -> list[bool]:
    return [kind == "sliding_attention" for kind in config.layer_types]


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
GRANITE_KEYS = {
    "embedding_scale": named("embedding_multiplier"),
    "residual_scale": named("residual_multiplier"),
    "attention.scale": named("attention_multiplier"),
    "logit_scale": named("logits_scaling"),
    "rope.dimension_count": 16,
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


def tiny_model(row: Written, seed: int = 0, **more: Any) -> PreTrainedModel:
    """Random everywhere, norms and biases too, so that none can be taken for another. `more` are settings."""
    settings = {**SHAPE, "rope_parameters": ROPE, **row.config, **more}
    if not row.head_dim:
        settings.pop("head_dim")
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.3
            parameter.copy_(noise + (1 if "norm" in name and name.endswith("weight") else 0))
    tiny: PreTrainedModel = model.float().eval()
    return tiny


def common_keys(config: Any, head_dim: bool) -> dict[str, Any]:
    """What the converter takes from any config that has it."""
    rope = getattr(config, "rope_parameters", None) or {}
    whole, local = rope.get("full_attention", rope), rope.get("sliding_attention", {})
    scaling = {
        "linear": {"type": "linear", "factor": whole.get("factor")},
        "longrope": {"type": "longrope"},
        "yarn": {
            "type": "yarn",
            "factor": whole.get("factor"),
            "original_context_length": whole.get("original_max_position_embeddings"),
            "yarn_beta_fast": whole.get("beta_fast"),
            "yarn_beta_slow": whole.get("beta_slow"),
        },
    }.get(whole.get("rope_type"), {})
    known = {
        "block_count": config.num_hidden_layers,
        "context_length": getattr(config, "max_position_embeddings", None),
        "embedding_length": config.hidden_size,
        "feed_forward_length": getattr(config, "intermediate_size", None),
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", None),
        "attention.key_length": config.head_dim if head_dim else None,
        "attention.value_length": config.head_dim if head_dim else None,
        "rope.freq_base": whole.get("rope_theta"),
        "rope.freq_base_swa": local.get("rope_theta"),
        "attention.layer_norm_rms_epsilon": _first(config, "rms_norm_eps"),
        "attention.layer_norm_epsilon": _first(
            config, "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"
        ),
        "expert_count": _first(config, "num_local_experts", "num_experts"),
        "expert_used_count": _first(config, "num_experts_per_tok"),
        **{f"rope.scaling.{key}": value for key, value in scaling.items()},
    }
    return {key: value for key, value in known.items() if value is not None}


def _first(config: Any, *names: str) -> Any:
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def write_file(path: Path, row: Written, model: PreTrainedModel, qtype: Any = None) -> None:
    """Matrices become blocks of `qtype`, or what it makes of a name, where their rows are whole blocks of it. A model
    of VOCAB_SIZE has a tokenizer."""
    config: Any = model.config
    writer = gguf.GGUFWriter(path, row.name)
    keys = common_keys(config, row.head_dim) | {key: _value(value, config) for key, value in row.keys.items()}
    for key, value in keys.items():
        if value is not None:
            add_key(writer, f"{row.name}.{key}", value)
    if config.vocab_size == VOCAB_SIZE:
        write_tokenizer(writer, VOCAB_SIZE)
    for key, value in activations(model).items():
        writer.add_array(key, value)
    for token in ("bos", "eos"):
        writer.add_uint32(f"tokenizer.ggml.{token}_token_id", getattr(config, f"{token}_token_id"))
    for name, value in written_tensors(row, model):
        data = np.ascontiguousarray(value)
        kind = qtype(name) if callable(qtype) else qtype
        if kind is not None and data.ndim >= 2 and data.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0:
            writer.add_tensor(name, gguf.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def activations(model: PreTrainedModel) -> dict[str, list[float]]:
    """Apertus', of each layer."""
    found: dict[str, list[float]] = {}
    for name, value in model.state_dict().items():
        if ".act_fn." in name:
            found.setdefault(f"xielu.{name.rpartition('.')[2]}", []).append(float(value))
    return found


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    else:
        kinds: dict[type, Any] = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        kinds.get(type(value), writer.add_string)(key, value)


def written_tensors(row: Written, model: PreTrainedModel) -> Tensors:
    config: Any = model.config
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == row.name)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    norms: dict[str, list[Floats]] = {}
    for parameter, tensor in model.named_parameters():
        if ".act_fn." in parameter:  # keys of the file
            continue
        if ".norms." in parameter:  # StableLM's, one for each head
            norms.setdefault(parameter.partition(".norms.")[0] + ".weight", []).append(tensor.detach().numpy())
            continue
        for name, value in row.transform(config, parameter, tensor.detach().numpy()):
            yield _stored(names, name), value
    for name, heads in norms.items():
        yield _stored(names, name), np.stack(heads)
    yield from _rope_tensors(config)


def _stored(names: gguf.TensorNameMap, name: str) -> str:
    if name.startswith("blk."):
        return name
    stem, _, end = name.rpartition(".")
    return f"{names.get_name(stem)}.{end}"


def _rope_tensors(config: Any) -> Tensors:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rules = getattr(config, "rope_parameters", None) or {}
    if rules.get("rope_type") == "llama3":
        ruled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
        plain = rules["rope_theta"] ** -(torch.arange(0, config.head_dim, 2) / config.head_dim)
        yield "rope_freqs.weight", (plain / ruled).numpy()
    for length in ("long", "short"):
        if f"{length}_factor" in rules:
            yield f"rope_factors_{length}.weight", np.array(rules[f"{length}_factor"], np.float32)
