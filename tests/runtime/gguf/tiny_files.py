"""Tiny random models of transformers, written as GGUF files with the package gguf, as llama.cpp's converter writes
them: keys from the model's config, names by the package's own table, tensors transformed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.models import VOCAB_SIZE
from tests.runtime.gguf.settings import ROPE
from tests.runtime.gguf.transforms import Floats, Tensors
from tests.runtime.gguf.written import Written
from tests.runtime.sources.gguf_files import write_tokenizer

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


def _value(keyed: Any, config: Any) -> Any:
    return keyed(config) if callable(keyed) else keyed


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
