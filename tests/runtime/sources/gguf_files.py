"""GGUF files of tiny models, written as llama.cpp's converter writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from agentkv_runtime.sources.gguf import load_gguf
from agentkv_runtime.sources.source import described
from gguf import GGMLQuantizationType as Q
from transformers import PreTrainedModel

from tests.blocks import random_blocks
from tests.models import CHAT_TEMPLATE, TURN_END, tiny_model, tiny_spec, tiny_tokenizer

SHAPE: dict[str, Any] = {"hidden": 256, "intermediate": 256, "head_dim": 64, "layers": 2}
"""Of models whose rows are whole blocks, whatever their type."""
TOKENS = [(7 * i) % 29 + 3 for i in range(40)]
FILES = [
    ("llama", Q.Q4_0, True),
    ("llama", Q.F16, False),
    ("qwen2", Q.Q5_1, True),
    ("qwen3", Q.Q8_0, False),
    ("gemma3", Q.Q4_K, True),
    ("gemma3", Q.BF16, True),
    ("qwen2", Q.Q5_0, False),
    ("llama", Q.Q4_1, True),
    ("qwen3", Q.F32, True),
]
"""What `tiny_file` is asked for where a file is run: the model, the type of its blocks, whether its head is tied."""
ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}


def write_gguf(
    path: Path, model: PreTrainedModel, kind: str, qtype: Q, more: Mapping[str, str | float] | None = None
) -> dict[str, torch.Tensor]:
    """Writes a model; returns what its weights are once they are dequantised, by transformers' names. `more` are
    further keys of its metadata, those that begin with a dot below its architecture."""
    config, writer = model.config, gguf.GGUFWriter(path, kind)
    _write_metadata(writer, config, kind)
    for key, value in (more or {}).items():
        name = kind + key if key.startswith(".") else key
        kinds = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        kinds[type(value)](name, value)
    names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == kind), 8)
    kept: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        weights = parameter.detach().numpy()
        if kind == "gemma3" and "norm" in name:
            weights = weights + 1
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        permuted = next((n for part, n in heads.items() if part in name), 0) if kind == "llama" else 0
        if permuted:
            weights = _permuted(weights, permuted)
        stored = name_in_file(names, name)
        as_type = qtype if weights.ndim == 2 else Q.F32
        data = _blocks(weights, as_type, seed=len(kept))
        writer.add_tensor(stored, data, raw_dtype=as_type)
        back = gguf.dequantize(data, as_type).reshape(weights.shape)
        if permuted:
            back = _unpermuted(back, permuted)
        kept[name] = torch.from_numpy(back - (1 if kind == "gemma3" and "norm" in name else 0))
    if "rope_freqs" in model.__dict__:
        writer.add_tensor("rope_freqs.weight", model.rope_freqs)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept


def tiny_file(place: Path, kind: str, qtype: Q, tied: bool = True) -> tuple[Path, npt.NDArray[np.float32]]:
    """A tiny model's file of SHAPE, and the logits of its dequantised weights after TOKENS."""
    path = place / "model.gguf"
    write_gguf(path, tiny_model(tiny_spec(kind, tied=tied, **SHAPE)), kind, qtype)
    with described(path) as words, torch.no_grad():
        return path, load_gguf(path, words.folder)(torch.tensor(TOKENS)[None]).logits[0].numpy()


def name_in_file(names: gguf.TensorNameMap, name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    return f"{names.get_name(stem)}.{suffix}"


def _write_metadata(writer: gguf.GGUFWriter, config: Any, kind: str) -> None:
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(getattr(config, "head_dim", config.hidden_size // config.num_attention_heads))
    writer.add_vocab_size(config.vocab_size)
    if kind in ("qwen3", "gemma3"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if kind == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    else:
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    write_tokenizer(writer, config.vocab_size)
    writer.add_eos_token_id(tiny_tokenizer(config.vocab_size).token_to_id(TURN_END))


def write_tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    """That of the tiny models, with its chat template."""
    tokenizer = tiny_tokenizer(size)
    tokens = [tokenizer.id_to_token(i) for i in range(size)]
    merges = [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges(merges)
    writer.add_chat_template(CHAT_TEMPLATE)


def _permuted(weights: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Llama's rows as the file has them: pairs of a rotation side by side."""
    halves = weights.reshape(heads, 2, -1, weights.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weights.shape))


def _unpermuted(weights: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    pairs = weights.reshape(heads, -1, 2, weights.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weights.shape))


def _blocks(weights: npt.NDArray[np.float32], qtype: Q, seed: int) -> npt.NDArray[np.uint8]:
    """The weights in blocks; random ones of the types that the package reads and does not write."""
    try:
        blocks: npt.NDArray[np.uint8] = gguf.quantize(weights, qtype)
    except NotImplementedError:
        per_row = weights.shape[1] // gguf.GGML_QUANT_SIZES[qtype][0]
        blocks = random_blocks(qtype.name.lower(), len(weights), per_row, seed, scale=2e-4)
    return blocks
